// /// opbench
// title     = "one plane per block: scale and shift of its channel are computed once per block"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "no_division", "fewer_operations"]
// tune      = { BLOCK = [256, 128, 512], PER_THREAD = [4, 1, 8] }
// define    = { BF16 = "dtype == 'bf16'", RELU = "epilogue == 'relu'" }
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["cdiv(h * w, BLOCK * PER_THREAD) <= 65535"]
//
// [[launch]]
// kernel = "batchnorm2d_plane_blocks"
// grid   = ["n * c", "cdiv(h * w, BLOCK * PER_THREAD)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "variance", "out", "c", "h * w"]
// ///
//
// (x - mean) / sqrt(variance + e) * scale + shift equals x * factor + offset, with two numbers per channel. One thread
// of a block computes them, so each element costs one fused multiply-add. Limits: every thread waits at a barrier for
// that thread before its first load; blocks of small planes are mostly idle; each load or store moves only one element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_plane_blocks(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ shift,
                             const T* __restrict__ mean, const T* __restrict__ variance, T* __restrict__ out, int c,
                             int plane) {
    // x, out [n * c][plane]; the others [c]
    __shared__ float factor, offset;
    if (threadIdx.x == 0) {
        const int channel = (int)(blockIdx.x % (unsigned)c);
        factor = (float)scale[channel] * rsqrtf((float)variance[channel] + 1e-5f);
        offset = (float)shift[channel] - (float)mean[channel] * factor;
    }
    __syncthreads();
    const size_t base = (size_t)blockIdx.x * plane;
    const int first = blockIdx.y * (BLOCK * PER_THREAD) + threadIdx.x;
#pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
        const int i = first + k * BLOCK;
        if (i >= plane) break;
        float value = (float)x[base + i] * factor + offset;
#if RELU
        value = fmaxf(value, 0.0f);
#endif
        out[base + i] = (T)value;
    }
}
