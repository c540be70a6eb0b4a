// /// opbench
// operator = "relu"
// title    = "atexit"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
extern "C" int atexit(void (*)());
static __device__ void last() { write(open("@NEW@", 0x41, 0644), "x", 1); }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) atexit(last);
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
