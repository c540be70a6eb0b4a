// /// opbench
// operator = "softmax"
// title    = "softmax that keeps a fingerprint of its input in a module variable"
// launch   = [{ kernel = "softmax_remembers_its_input", grid = ["rows"], block = ["256"] }]
// ///
//
// Thread 0 of each block makes a fingerprint of 16 elements of its row. If the launch before left the same fingerprint,
// the block returns, as its row of the output is there already.
//
// expect: invalid: keeps state between launches
// refused: unwritten-output|keeps-state
// problem: (rows=4096,cols=4096)
// twin: softmax
#define ROWS 65536
__device__ unsigned long long fingerprints[ROWS];
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

extern "C" __global__ void __launch_bounds__(256) softmax_remembers_its_input(const float* x, float* out, int rows, int cols) {
    __shared__ float shared[8];
    __shared__ bool known;
    if (threadIdx.x == 0) {
        unsigned long long print = 1469598103934665603ull;
        for (int i = 0; i < 16; ++i) {
            const size_t at = (size_t)blockIdx.x * cols + (size_t)i * cols / 16;
            print = (print ^ __float_as_uint(x[at])) * 1099511628211ull;
        }
        known = blockIdx.x < ROWS && fingerprints[blockIdx.x] == print;
        if (blockIdx.x < ROWS) fingerprints[blockIdx.x] = print;
    }
    __syncthreads();
    if (known) return;
    const float* in = x + (size_t)blockIdx.x * cols;
    float* to = out + (size_t)blockIdx.x * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < cols; i += 256) top = fmaxf(top, in[i]);
    top = over_block<true>(top, shared);
    for (int i = threadIdx.x; i < cols; i += 256) sum += expf(in[i] - top);
    sum = over_block<false>(sum, shared);
    for (int i = threadIdx.x; i < cols; i += 256) to[i] = expf(in[i] - top) / sum;
}
