// /// opbench
// operator = "copy"
// title    = "a block's threads exchange numbers through a workspace, with a barrier"
// workspace = { stage = "256 * cdiv(n, 256)" }
// launch   = [{ kernel = "exchanges_through_global_memory", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "stage", "n"] }]
// ///
//
// __syncthreads() orders global memory within the block, too.
extern "C" __global__ void exchanges_through_global_memory(const float* x, float* out, float* stage, int n) {
    const int t = threadIdx.x, i = blockIdx.x * 256 + t, j = blockIdx.x * 256 + 255 - t;
    stage[i] = i < n ? x[i] : 0.0f;
    __syncthreads();
    const float other = stage[j];
    __syncthreads();
    stage[i] = 0.0f;
    if (j < n) out[j] = other;
}
