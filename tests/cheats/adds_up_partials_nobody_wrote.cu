// /// opbench
// operator = "sum"
// title    = "adds up a whole workspace of which some was written"
// workspace = { partial = "2048" }
//
// [[launch]]
// kernel = "partials"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "total"
// grid = ["1"]
// block = ["32"]
// args = ["partial", "out"]
// ///
//
// There are as many partial sums as there were blocks, not 2048.
// expect: adds_up_partials_nobody_wrote.cu:37: uninitialised-global: read of uninitialised global memory: 4 bytes
__device__ float warp_sum(float v) {
    for (int distance = 16; distance > 0; distance /= 2) v += __shfl_down_sync(0xffffffffu, v, distance);
    return v;
}
extern "C" __global__ void partials(const float* x, float* partial, int n) {
    __shared__ float sums[8];
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float sum = warp_sum(i < n ? x[i] : 0.0f);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const float total = warp_sum(threadIdx.x < 8 ? sums[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}
extern "C" __global__ void total(const float* partial, float* out) {
    float own = 0.0f;
    for (int i = threadIdx.x; i < 2048; i += 32) own += partial[i];
    own = warp_sum(own);
    if (threadIdx.x == 0) out[0] = own;
}
