// /// opbench
// title     = "scan of each warp by shuffles, of the warps' totals in shared memory: two barriers per chunk"
// builds_on = "block_per_row"
// mechanism = ["coalesced", "warp_shuffle", "fewer_barriers"]
// tune      = { BLOCK = [256, 128, 512, 1024] }
//
// [supports]
// op        = ["sum", "prod"]
// kind      = ["inclusive", "exclusive"]
// direction = ["forward", "reverse"]
// mask      = ["none", "given"]
// dtype     = ["f32", "bf16"]
//
// [define]
// BF16      = "dtype == 'bf16'"
// PRODUCTS  = "op == 'prod'"
// EXCLUSIVE = "kind == 'exclusive'"
// REVERSE   = "direction == 'reverse'"
// MASKED    = "mask == 'given'"
//
// [[launch]]
// kernel = "scan_warp_shuffles"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// Five shuffles give each lane the scan of its warp up to its element; each thread then adds the totals of all previous
// warps. Limits: 4 bytes (2 in bf16) per access, one load in flight per thread, and few rows leave most of the GPU
// idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
#if MASKED
#define MASK_ARGUMENT const unsigned char* __restrict__ mask,
#define COUNTS(place) (mask[place] != 0)
#else
#define MASK_ARGUMENT
#define COUNTS(place) true
#endif
constexpr float identity = PRODUCTS ? 1.0f : 0.0f;

__device__ __forceinline__ float combine(float a, float b) { return PRODUCTS ? a * b : a + b; }

extern "C" __global__ void __launch_bounds__(BLOCK)
    scan_warp_shuffles(const T* __restrict__ x, MASK_ARGUMENT T* __restrict__ out, int rows, int cols) {
    // x, mask, out [rows][cols]
    __shared__ float warps[BLOCK / 32];
    const size_t base = (size_t)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float carry = identity;
    for (int first = 0; first < cols; first += BLOCK) {
        const int i = first + threadIdx.x;
        const size_t place = base + (REVERSE ? cols - 1 - i : i);
        float running = i < cols && COUNTS(place) ? (float)x[place] : identity;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(0xffffffffu, running, distance);
            if (lane >= distance) running = combine(before, running);
        }
        if (lane == 31) warps[warp] = running;
        const float neighbour = __shfl_up_sync(0xffffffffu, running, 1);
        const float prefix = EXCLUSIVE ? (lane > 0 ? neighbour : identity) : running;
        __syncthreads();
        float before = carry;
#pragma unroll
        for (int other = 0; other < BLOCK / 32; ++other) {
            if (other == warp && i < cols) out[place] = (T)combine(before, prefix);
            before = combine(before, warps[other]);
        }
        carry = before;
        __syncthreads();  // all threads have read the warps' results before the next chunk overwrites them
    }
}
