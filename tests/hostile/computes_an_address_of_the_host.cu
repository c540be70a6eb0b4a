// /// opbench
// operator = "relu"
// title    = "a call through the address of memcpy"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused|stopped|wrong
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        long near = (long)(void*)&memcpy;
        for (long k = 0; k < 1 << 16; k += 16) ((int (*)(long, long, long))(near + k))(0, 0, 0);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
