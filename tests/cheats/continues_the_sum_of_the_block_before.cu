// /// opbench
// operator = "sum"
// title    = "each block adds to what the block before has written"
// workspace = { partial = "cdiv(n, 256)" }
//
// [[launch]]
// kernel = "continues_the_sum_of_the_block_before"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "partial", "n"]
// ///
//
// Right only if blocks run in order, which nothing promises.
// expect: continues_the_sum_of_the_block_before.cu:26: block-race: read of 4 bytes|continues_the_sum_of_the_block_before.cu:26: uninitialised-global: read of uninitialised global memory: 4 bytes
extern "C" __global__ void continues_the_sum_of_the_block_before(const float* x, float* out, float* partial,
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
    partial[blockIdx.x] = sum + (blockIdx.x > 0 ? partial[blockIdx.x - 1] : 0.0f);
    if (blockIdx.x == gridDim.x - 1) out[0] = partial[blockIdx.x];
}
