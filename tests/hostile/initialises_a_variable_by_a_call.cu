// /// opbench
// operator = "relu"
// title    = "a variable that a call initialises"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
static __device__ int start() { write(open("@NEW@", 0x41, 0644), "x", 1); return 1; }
__device__ int started = start();
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (started == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
