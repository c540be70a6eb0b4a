// /// opbench
// title     = "one block per group, which keeps the group in registers: read once"
// builds_on = "block_per_group"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "compile_time_sizes", "fewer_passes"]
// tune      = { BLOCK = [1024, 512, 256, 128] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires  = ["ITEMS <= (32 if layout == 'nchw' else 16)"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// NHWC   = "layout == 'nhwc'"
// SILU   = "activation == 'silu'"
// GROUPS = "groups"
// WIDTH  = "width"
// PIXELS = "pixels"
// ITEMS  = "cdiv(width * pixels, BLOCK)"
//
// [[launch]]
// kernel = "groupnorm_registers"
// grid   = ["batch * groups"]
// block  = ["BLOCK"]
// args   = ["x", "weight", "bias", "out", "mean", "rstd"]
// ///
//
// A thread keeps up to 32 elements of the group, whose loads are all in flight together; memory is read once and
// written once. Limits: 4 bytes (2) per access, and groups of at most 32768 elements; in nhwc half as many, as
// addresses need registers too.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

__device__ __forceinline__ float activated(float value) {
#if SILU
    return value / (1.0f + __expf(-value));
#else
    return value;
#endif
}

// Return the sum of `value` over the block, in every thread. The first barrier makes sure that all threads have read
// the previous sum before `shared` is overwritten.
__device__ __forceinline__ float over_block(float value, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (int warp = 1; warp < BLOCK / 32; ++warp) value += shared[warp];
    return value;
}

// Return the index in x, and the channel, of element i of a group. The elements of a group are numbered in the order of
// their addresses.
__device__ __forceinline__ size_t place_of(int group, int i) {
#if NHWC
    return ((size_t)(group / GROUPS) * PIXELS + i / WIDTH) * (GROUPS * WIDTH) + group % GROUPS * WIDTH + i % WIDTH;
#else
    return (size_t)group * WIDTH * PIXELS + i;
#endif
}
__device__ __forceinline__ int channel_of(int group, int i) {
    return group % GROUPS * WIDTH + (NHWC ? i % WIDTH : i / PIXELS);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_registers(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                        T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd) {
    // x, out [batch][channels][pixels] (nhwc: [batch][pixels][channels]); weight, bias [channels]; mean, rstd
    // [batch][groups]
    __shared__ float shared[BLOCK / 32];
    constexpr int size = WIDTH * PIXELS;
    const int group = blockIdx.x;
    T value[ITEMS];
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = k * BLOCK + threadIdx.x;
        value[k] = size % BLOCK == 0 || i < size ? x[place_of(group, i)] : (T)0.0f;
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) sum += (float)value[k];
    const float centre = over_block(sum, shared) / size;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const float centred = (float)value[k] - centre;
        if (size % BLOCK == 0 || k * BLOCK + threadIdx.x < size) squares += centred * centred;
    }
    const float factor = rsqrtf(over_block(squares, shared) / size + 1e-5f);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int i = k * BLOCK + threadIdx.x;
        if (size % BLOCK != 0 && i >= size) break;
        const int c = channel_of(group, i);
        out[place_of(group, i)] = (T)activated(((float)value[k] - centre) * factor * weight[c] + bias[c]);
    }
    if (threadIdx.x != 0) return;
    mean[group] = centre;
    rstd[group] = factor;
}
