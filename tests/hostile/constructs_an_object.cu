// /// opbench
// operator = "relu"
// title    = "a static object with a constructor"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
struct Start { __device__ Start() { write(open("@NEW@", 0x41, 0644), "x", 1); } int used = 1; };
__device__ Start start;
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (start.used == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
