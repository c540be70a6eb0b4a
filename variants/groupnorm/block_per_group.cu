// /// opbench
// title     = "one block per group of one image, three passes, sums by warp shuffles and shared memory"
// builds_on = "thread_per_group"
// mechanism = ["coalesced", "block_reduction", "warp_shuffle", "compile_time_sizes"]
// tune      = { BLOCK = [512, 256, 1024, 128] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
//
// [define]
// BF16   = "dtype == 'bf16'"
// NHWC   = "layout == 'nhwc'"
// SILU   = "activation == 'silu'"
// GROUPS = "groups"
// WIDTH  = "width"
// PIXELS = "pixels"
//
// [[launch]]
// kernel = "groupnorm_block_per_group"
// grid   = ["batch * groups"]
// block  = ["BLOCK"]
// args   = ["x", "weight", "bias", "out", "mean", "rstd"]
// ///
//
// The lanes of a warp read along the group: its planes in nchw; in nhwc the group's channels of one pixel after the
// other. The second and third pass read from the L1 cache if the group fits there, otherwise from the L2 cache. Limits:
// three passes, with barriers between them; in nhwc the channels of a group may be less than the 32 bytes of a sector.
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

// Return the index in x of element i of a group. The elements of a group are numbered in the order of their addresses.
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
    groupnorm_block_per_group(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                              T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd) {
    // x, out [batch][channels][pixels] (nhwc: [batch][pixels][channels]); weight, bias [channels]; mean, rstd
    // [batch][groups]
    __shared__ float shared[BLOCK / 32];
    constexpr int size = WIDTH * PIXELS;
    const int group = blockIdx.x;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < size; i += BLOCK) sum += (float)x[place_of(group, i)];
    const float centre = over_block(sum, shared) / size;
    for (int i = threadIdx.x; i < size; i += BLOCK) {
        const float centred = (float)x[place_of(group, i)] - centre;
        squares += centred * centred;
    }
    const float factor = rsqrtf(over_block(squares, shared) / size + 1e-5f);
    for (int i = threadIdx.x; i < size; i += BLOCK) {
        const int c = channel_of(group, i);
        const size_t place = place_of(group, i);
        out[place] = (T)activated(((float)x[place] - centre) * factor * weight[c] + bias[c]);
    }
    if (threadIdx.x != 0) return;
    mean[group] = centre;
    rstd[group] = factor;
}
