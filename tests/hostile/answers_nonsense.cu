// /// opbench
// operator = "relu"
// title    = "garbage on every descriptor"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: crash-the-judge
// expect: refused
extern "C" long write(int, const void*, unsigned long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        for (int file = 3; file < 64; ++file) write(file, "\xff\xff\xff\xff\xff\xff\xff\x7f{[[[[[[[[", 16);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
