// /// opbench
// operator = "relu"
// title    = "the last thread of a block is found by a plain read of a shared counter"
// launch   = [{ kernel = "counter_of_a_block_read_plainly", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Two threads may both read the full count.
// expect: counter_of_a_block_read_plainly.cu:15: shared-race
__global__ void counter_of_a_block_read_plainly(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int arrived, finished;
    if (threadIdx.x == 0) arrived = finished = 0;
    __syncthreads();
    atomicAdd(&arrived, 1);
    if (arrived == 64) atomicAdd(&finished, 1);
}
