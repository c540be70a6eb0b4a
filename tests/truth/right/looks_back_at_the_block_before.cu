// /// opbench
// operator = "sum"
// title    = "a chained sum: each block waits for the total of the block before it"
// workspace = { total = "cdiv(n, 256)", ready = "cdiv(n, 256)", ticket = "1" }
//
// [[launch]]
// zero = "ready"
//
// [[launch]]
// zero = "ticket"
//
// [[launch]]
// kernel = "looks_back_at_the_block_before"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "total", "ready", "ticket", "n"]
// ///
//
// A ticket gives the blocks an order in which each has begun before those behind it. The total is fenced before the volatile
// flag says that it is there, and the flag is seen before a fence and the total.
extern "C" __global__ void looks_back_at_the_block_before(const float* x, float* out, volatile float* total,
                                                          volatile unsigned* ready, unsigned* ticket, int n) {
    __shared__ float sums[8];
    __shared__ unsigned drawn;
    const int t = threadIdx.x;
    if (t == 0) drawn = atomicAdd(ticket, 1u);
    __syncthreads();
    const int block = drawn, i = block * 256 + t;
    float own = i < n ? x[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    __syncthreads();
    if (t > 0) return;
    float sum = 0.0f;
    for (int w = 0; w < 8; ++w) sum += sums[w];
    if (block > 0) {
        while (ready[block - 1] == 0u) {}
        __threadfence();
        sum += total[block - 1];
    }
    total[block] = sum;
    __threadfence();
    ready[block] = 1u;
    if (block == gridDim.x - 1) out[0] = sum;
}
