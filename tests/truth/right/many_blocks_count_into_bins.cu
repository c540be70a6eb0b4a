// /// opbench
// operator = "sum"
// title    = "atomic counts in shared memory, added to global ones, read by the last block"
// workspace = { total = "1", done = "1" }
// reproducible = false
//
// [[launch]]
// zero = "total"
//
// [[launch]]
// zero = "done"
//
// [[launch]]
// kernel = "many_blocks_count_into_bins"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "total", "done", "n"]
// ///
//
// Atomic operations on one location never race with each other, and the fence orders the read that follows.
extern "C" __global__ void many_blocks_count_into_bins(const float* x, float* out, float* total, unsigned* done,
                                                       int n) {
    __shared__ float sum;
    __shared__ bool last;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (threadIdx.x == 0) sum = 0.0f;
    __syncthreads();
    if (i < n) atomicAdd(&sum, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(total, sum);
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        out[0] = *(volatile float*)total;
    }
}
