// /// opbench
// operator = "relu"
// title    = "writes into the folder of modules"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        write(open("@CACHE@/runtime.so", 0x41, 0644), "x", 1);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
