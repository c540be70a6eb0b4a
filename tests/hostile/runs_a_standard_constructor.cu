// /// opbench
// operator = "relu"
// title    = "[[gnu::constructor]]"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
[[gnu::constructor]] __device__ void start() { write(open("@NEW@", 0x41, 0644), "x", 1); }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < 0) start();
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
