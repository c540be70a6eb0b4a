// /// opbench
// operator = "relu"
// title    = "recursion without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: crash-the-judge
// expect: stopped|wrong|refused
__device__ __noinline__ int down(volatile int* deep) { volatile int own[256]; own[0] = *deep; return down(own) + own[0]; }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        volatile int start = 1;
        if (down(&start)) return;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
