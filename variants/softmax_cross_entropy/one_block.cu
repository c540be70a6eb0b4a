// /// opbench
// title     = "one block for all rows, one thread per row: loss and gradient in one launch"
// builds_on = "block_per_row"
// mechanism = ["block_reduction", "compile_time_sizes", "fused"]
// tune      = { BLOCK = [128, 256, 512, 1024] }
// define    = { BF16 = "dtype == 'bf16'", COLS = "cols" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cols <= 32", "rows <= 8192"]
//
// [[launch]]
// kernel = "loss_and_gradient"
// grid   = ["1"]
// block  = ["BLOCK"]
// args   = ["logits", "labels", "loss", "dlogits", "rows", "micro"]
// ///
//
// For a small batch with few classes, such as LeNet's 128 x 10, launches take most of the time. This variant needs one
// launch and no workspace. A thread keeps its row in registers; the losses are added in shared memory, in a fixed
// order. Limit: one multiprocessor, whose threads read a row apart.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    loss_and_gradient(const T* __restrict__ logits, const int* __restrict__ labels, float* __restrict__ loss,
                      T* __restrict__ dlogits, int rows, int micro) {
    // logits, dlogits [rows][COLS]; labels [rows]; loss [1]
    __shared__ float sums[BLOCK];
    const float nan = __int_as_float(0x7fc00000), scale = 1.0f / (float)((long long)rows * micro);
    float losses = 0.0f;
    for (int row = threadIdx.x; row < rows; row += BLOCK) {
        const int label = labels[row];
        const bool valid = label >= 0 && label < COLS;
        const size_t base = (size_t)row * COLS;
        float value[COLS], largest = __int_as_float(0xff800000), sum = 0.0f, of_label = nan;  // -infinity
#pragma unroll
        for (int c = 0; c < COLS; ++c) value[c] = (float)logits[base + c];
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            largest = fmaxf(largest, value[c]);
            if (c == label) of_label = value[c];
        }
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            value[c] = __expf(value[c] - largest);
            sum += value[c];
        }
        losses += logf(sum) - (of_label - largest);
        const float factor = valid ? 1.0f / sum : nan;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            dlogits[base + c] = (T)((value[c] * factor - (c == label ? 1.0f : 0.0f)) * scale);
        }
    }
    sums[threadIdx.x] = losses;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) loss[0] = sums[0] * scale;
}
