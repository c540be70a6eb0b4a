// /// opbench
// operator = "relu"
// title    = "the halves of a warp wait at different barriers"
// launch   = [{ kernel = "diverges_at_a_barrier", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: divergent-barrier
extern "C" __global__ void diverges_at_a_barrier(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 32 < 16) {
        if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
        __syncthreads();
    } else {
        __syncthreads();
        if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
    }
}
