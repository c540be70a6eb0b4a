// /// opbench
// operator = "relu"
// title    = "half of a warp waits, half has another barrier"
// launch   = [{ kernel = "diverges_at_a_barrier", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: wrong: |failed: 
extern "C" __global__ void diverges_at_a_barrier(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x % 32 < 16) __syncthreads();
    else if (n < 0) __syncthreads();
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
    if (threadIdx.x % 32 < 16) __syncthreads();
}
