// /// opbench
// operator = "relu"
// title    = "stages in shared memory inside if (i < n), barrier included"
// launch   = [{ kernel = "barrier_inside_the_guard", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Threads beyond n meet the next barrier instead; right where 256 divides n.
// expect: barrier_inside_the_guard.cu:17: divergent-barrier: |barrier_inside_the_guard.cu:14: divergent-barrier: 
extern "C" __global__ void barrier_inside_the_guard(const float* x, float* out, int n) {
    __shared__ float turned[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t, last = min(255, n - 1 - (int)blockIdx.x * 256);
    if (i < n) {
        turned[last - t] = x[i];
        __syncthreads();
    }
    const float mine = i < n ? turned[last - t] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = fmaxf(mine, 0.0f);
}
