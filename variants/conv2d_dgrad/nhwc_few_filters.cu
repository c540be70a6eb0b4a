// /// opbench
// title     = "nhwc, few 1x1 filters: weights in registers, 16-byte stores of the gradient"
// builds_on = "implicit_gemm"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "unrolled", "compile_time_sizes", "few_channels"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"], dtype = ["f32", "bf16"] }
// tune      = { BLOCK = [256, 512], UNROLL = [4, 2, 8, 1] }
// where     = ["BLOCK == 256 or UNROLL in (2, 4)"]
// requires  = ["k <= 4", "r == 1 and s == 1 and stride == 1 and padding == 0", "LANES <= BLOCK", "n * h * w < 2 ** 30"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// ADD     = "epilogue == 'add'"
// MASK    = "epilogue == 'mask'"
// C       = "c"
// FILTERS = "k"
// VEC     = "(8 if dtype == 'bf16' else 4) if c % (8 if dtype == 'bf16' else 4) == 0 else 1"
// LANES   = "c // VEC"
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_few_filters"
// grid   = ["cdiv(n * h * w, UNROLL * max(1, BLOCK // LANES))"]
// block  = ["BLOCK"]
// args   = ["dout", "weight", "skip?", "out?", "dimage", "n * h * w"]
// ///
//
// The last layer of a segmentation network has one filter, so the gradient of its image is dout times one row of
// weights. A matrix product would work on tiles of depth 32, most of them zeros. Here LANES threads compute all
// channels of a pixel, VEC channels each, and keep the weights of these channels in registers. All of them read the
// same FILTERS numbers of dout from the L1 cache. Each thread works on UNROLL pixels at once. Limit: writing to DRAM;
// expected to run at the rate of a fill.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int GROUPS = BLOCK / LANES;  // pixels that a block computes at once

union __align__(VEC * sizeof(T)) Channels {
    T elements[VEC];
    uint4 bits[1];
    __device__ Channels() {}
    __device__ __forceinline__ void load(const T* from) {
        if (VEC > 1)
            bits[0] = *reinterpret_cast<const uint4*>(from);
        else
            elements[0] = *from;
    }
};

// dout [pixels][FILTERS], weight [FILTERS][C], other (skip or out) and dimage [pixels][C]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_dgrad_nhwc_few_filters(const T* __restrict__ dout, const T* __restrict__ weight,
#if ADD || MASK
                                  const T* __restrict__ other,
#endif
                                  T* __restrict__ dimage, int pixels) {
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    if (group >= GROUPS) return;
    const int first = blockIdx.x * (UNROLL * GROUPS) + group;
    float weights[FILTERS][VEC];
#pragma unroll
    for (int k = 0; k < FILTERS; ++k) {
        Channels read;
        read.load(weight + k * C + lane * VEC);
#pragma unroll
        for (int v = 0; v < VEC; ++v) weights[k][v] = (float)read.elements[v];
    }
    float gradient[UNROLL][FILTERS];
#if ADD || MASK
    Channels other_values[UNROLL];
#endif
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int pixel = min(first + u * GROUPS, pixels - 1);  // after the end: load, but do not store
#pragma unroll
        for (int k = 0; k < FILTERS; ++k) gradient[u][k] = (float)dout[(size_t)pixel * FILTERS + k];
#if ADD || MASK
        other_values[u].load(other + (size_t)pixel * C + lane * VEC);
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int pixel = first + u * GROUPS;
        if (pixel >= pixels) return;
        Channels result;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < FILTERS; ++k) sum += gradient[u][k] * weights[k][v];
#if ADD
            sum += (float)other_values[u].elements[v];
#elif MASK
            if (!((float)other_values[u].elements[v] > 0.0f)) sum = 0.0f;
#endif
            result.elements[v] = T(sum);
        }
        T* const to = dimage + (size_t)pixel * C + lane * VEC;
        if (VEC > 1)
            *reinterpret_cast<uint4*>(to) = result.bits[0];
        else
            *to = result.elements[0];
    }
}
