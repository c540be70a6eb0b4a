// /// opbench
// operator = "relu"
// title    = "the last block is found by a plain read of the counter"
// launch   = [{ kernel = "counter_read_plainly", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Two blocks may both read the full count; what atomicAdd returns should be used.
// expect: counter_read_plainly.cu:15: block-race
__device__ unsigned arrived, finished;
__global__ void counter_read_plainly(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1);
        if (arrived == gridDim.x) atomicAdd(&finished, 1);
    }
}
