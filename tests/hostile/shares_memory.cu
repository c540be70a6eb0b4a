// /// opbench
// operator = "relu"
// title    = "shm_open"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int shm_open(const char*, int, int);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        shm_open("/@MARK@", 0x42, 0600);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
