// /// opbench
// operator = "relu"
// title    = "fork without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int fork();
extern "C" unsigned sleep(unsigned);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        for (int k = 0; k < 64; ++k)
            if (fork() == 0) sleep(300);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
