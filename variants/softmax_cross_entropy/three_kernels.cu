// /// opbench
// title     = "three kernels: log-softmax, the loss of each row, the gradient"
// mechanism = ["block_reduction"]
// tune      = { BLOCK = [128, 64, 256] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// workspace = { log_p = "rows * cols" }
//
// [[launch]]
// kernel = "log_softmax"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["logits", "log_p", "rows", "cols"]
//
// [[launch]]
// kernel = "mean_of_labels"
// grid   = ["1"]
// block  = ["256"]
// args   = ["log_p", "labels", "loss", "rows", "cols", "micro"]
//
// [[launch]]
// kernel = "gradient"
// grid   = ["cdiv(rows * cols, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["log_p", "labels", "dlogits", "rows", "cols", "micro"]
// ///
//
// The first variant, as a framework runs three operations one after the other: log-probabilities are written to memory
// and read again. They are log-probabilities because the logarithm of a probability that has underflowed to 0 would be
// infinite. Limits: 16 bytes more per element than needed; neighbouring lanes of the first kernel read addresses that
// are a whole row apart; one block adds all losses.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void log_softmax(const T* __restrict__ logits, float* __restrict__ log_p, int rows, int cols) {
    // logits, log_p [rows][cols]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const T* source = logits + (size_t)row * cols;
    float largest = __int_as_float(0xff800000), sum = 0.0f;  // -infinity
    for (int c = 0; c < cols; ++c) largest = fmaxf(largest, (float)source[c]);
    for (int c = 0; c < cols; ++c) sum += __expf((float)source[c] - largest);
    const float log_sum = logf(sum);
    for (int c = 0; c < cols; ++c) log_p[(size_t)row * cols + c] = (float)source[c] - largest - log_sum;
}

extern "C" __global__ void mean_of_labels(const float* __restrict__ log_p, const int* __restrict__ labels,
                                          float* __restrict__ loss, int rows, int cols, int micro) {
    // log_p [rows][cols]; labels [rows]; loss [1]; one block of 256 threads
    __shared__ float sums[256];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 256) {
        const int label = labels[row];
        const bool valid = label >= 0 && label < cols;
        sum -= valid ? log_p[(size_t)row * cols + label] : __int_as_float(0x7fc00000);  // NaN
    }
    sums[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) loss[0] = sums[0] / ((float)rows * micro);
}

extern "C" __global__ void gradient(const float* __restrict__ log_p, const int* __restrict__ labels,
                                    T* __restrict__ dlogits, int rows, int cols, int micro) {
    // log_p, dlogits [rows][cols]; labels [rows]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)rows * cols) return;
    const int label = labels[i / cols], column = i % cols;
    const bool valid = label >= 0 && label < cols;
    const float value = __expf(log_p[i]) - (column == label ? 1.0f : 0.0f);
    dlogits[i] = (T)(valid ? value / ((float)rows * micro) : __int_as_float(0x7fc00000));
}
