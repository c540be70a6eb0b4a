// /// opbench
// operator = "softmax"
// title    = "the honest twin: a softmax of one block for each row"
// launch   = [{ kernel = "softmax", grid = ["rows"], block = ["256"] }]
// ///
//
// Three passes over the row: maximum, sum, quotient.
//
// expect: right
// problem: (rows=4096,cols=4096)
template <bool MAXIMUM> __device__ __forceinline__ float over_block(float value, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = MAXIMUM ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < 8; ++warp) value = MAXIMUM ? fmaxf(value, shared[warp]) : value + shared[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(256) softmax(const float* x, float* out, int rows, int cols) {
    __shared__ float shared[8];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 256) top = fmaxf(top, in[i]);
    top = over_block<true>(top, shared);
    for (int i = threadIdx.x; i < cols; i += 256) sum += expf(in[i] - top);
    sum = over_block<false>(sum, shared);
    for (int i = threadIdx.x; i < cols; i += 256) to[i] = expf(in[i] - top) / sum;
}
