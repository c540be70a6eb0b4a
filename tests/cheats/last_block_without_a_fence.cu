// /// opbench
// operator = "sum"
// title    = "the last block to finish adds up, but nobody fenced his partial sum"
// workspace = { partial = "cdiv(n, 256)", done = "1" }
//
// [[launch]]
// zero = "done"
//
// [[launch]]
// kernel = "last_block_without_a_fence"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "partial", "done", "n"]
// ///
//
// The count may be seen before the partial sum that it announces.
// expect: last_block_without_a_fence.cu:32: block-race: read of 4 bytes
extern "C" __global__ void last_block_without_a_fence(const float* x, float* out, float* partial, unsigned* done,
                                      int n) {
    __shared__ float sums[8];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    float own = i < n ? x[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    __syncthreads();
    if (t > 0) return;
    float sum = 0.0f;
    for (int w = 0; w < 8; ++w) sum += sums[w];
    partial[blockIdx.x] = sum;
    if (atomicAdd(done, 1u) != gridDim.x - 1) return;
    float total = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) total += partial[b];
    out[0] = total;
}
