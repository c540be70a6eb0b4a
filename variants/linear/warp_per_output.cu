// /// opbench
// title     = "one warp per output, lanes along k: weight loads are coalesced; warp shuffles add the lanes"
// builds_on = "naive"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle"]
// supports  = { epilogue = ["bias", "bias_relu"], dtype = ["f32", "bf16"] }
// define    = { BF16 = "1 if dtype == 'bf16' else 0", RELU = "1 if epilogue == 'bias_relu' else 0" }
// tune      = { WARPS = [4, 8] }
// requires  = ["m <= 65535"]
//
// [[launch]]
// kernel = "linear_warp_per_output"
// grid   = ["cdiv(n, WARPS)", "m"]
// block  = [32, "WARPS"]
// ///
//
// A warp reads 32 neighbouring elements of one row of the weights: whole sectors, and each byte once. With one row of
// x, this order is already right, but too few bytes are in flight: a lane has a few loads of 4 bytes (2 in bf16) in
// flight, and DRAM needs 32 KB and more per multiprocessor. With m rows of x, the weights are read m times, at best
// from L2.

#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ __forceinline__ float wide(T value) { return __bfloat162float(value); }
__device__ __forceinline__ T narrow(float value) { return __float2bfloat16(value); }
#else
typedef float T;
__device__ __forceinline__ float wide(T value) { return value; }
__device__ __forceinline__ T narrow(float value) { return value; }
#endif

// x [m, k], weight [n, k], bias [n], out [m, n].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    linear_warp_per_output(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                           T* __restrict__ out, int m, int n, int k) {
    const int row = blockIdx.y, col = blockIdx.x * WARPS + threadIdx.y;
    if (col >= n) return;  // true for whole warps only, so shuffles stay safe
    const T* x_row = x + (size_t)row * k;
    const T* weight_row = weight + (size_t)col * k;
    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < k; i += 32) sum += wide(x_row[i]) * wide(weight_row[i]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x != 0) return;
    sum += wide(bias[col]);
    if (RELU) sum = fmaxf(sum, 0.0f);
    out[(size_t)row * n + col] = narrow(sum);
}
