// /// opbench
// title     = "one block per row: Hillis-Steele scan of BLOCK elements in log2(BLOCK) steps in shared memory"
// builds_on = "thread_per_row"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128, 512] }
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
// kernel = "scan_block_per_row"
// grid   = ["rows"]
// block  = ["BLOCK"]
// ///
//
// Neighbouring threads read neighbouring elements. In step s, each thread adds the result of the thread 2^s before it
// (Hillis and Steele, Communications of the ACM 29 (1986)). The last result of a chunk is carried into the next chunk.
// Limits: two barriers per step, and one load in flight per thread.
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
    scan_block_per_row(const T* __restrict__ x, MASK_ARGUMENT T* __restrict__ out, int rows, int cols) {
    // x, mask, out [rows][cols]
    __shared__ float results[BLOCK];
    const size_t base = (size_t)blockIdx.x * cols;
    float carry = identity;
    for (int first = 0; first < cols; first += BLOCK) {
        const int i = first + threadIdx.x;
        const size_t place = base + (REVERSE ? cols - 1 - i : i);
        float running = i < cols && COUNTS(place) ? (float)x[place] : identity;
        results[threadIdx.x] = running;
        __syncthreads();
        for (int distance = 1; distance < BLOCK; distance *= 2) {
            const float before = threadIdx.x >= distance ? results[threadIdx.x - distance] : identity;
            __syncthreads();
            running = combine(before, running);
            results[threadIdx.x] = running;
            __syncthreads();
        }
        const float before = EXCLUSIVE ? (threadIdx.x > 0 ? results[threadIdx.x - 1] : identity) : running;
        if (i < cols) out[place] = (T)combine(carry, before);
        carry = combine(carry, results[BLOCK - 1]);
        __syncthreads();  // all threads have read the results before the next chunk overwrites them
    }
}
