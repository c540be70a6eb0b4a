// /// opbench
// requires = ["inner == 1"]
// define   = { BF16 = "dtype == 'bf16'", HAS_INDEX = "has_index", OP = "op" }
//
// [supports]
// op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
// dtype = ["f32", "bf16"]
//
// [variant.block_per_row]
// title     = "one block per row, tree reduction in shared memory"
// builds_on = "thread_per_output"
// mechanism = ["coalesced", "block_reduction"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BY_WARP = "0" }
//
// [[variant.block_per_row.launch]]
// kernel = "reduce_block_per_row"
// grid   = ["outer"]
// block  = ["BLOCK"]
//
// [variant.warp_per_row]
// title     = "one warp per row, results combined by warp shuffles: no barrier"
// builds_on = "block_per_row"
// mechanism = ["coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "unrolled"]
// tune      = { ROWS_PER_BLOCK = [8, 4] }
// define    = { BY_WARP = "1" }
//
// [[variant.warp_per_row.launch]]
// kernel = "reduce_warp_per_row"
// grid   = ["cdiv(outer, ROWS_PER_BLOCK)"]
// block  = ["32", "ROWS_PER_BLOCK"]
// ///
//
// Neighbouring threads read neighbouring elements; a thread's own are BLOCK elements apart. Then half of the threads
// combine their results with those of the other half, until one is left. Limits: a barrier for each of log2(BLOCK)
// steps, and short rows leave most threads idle.
//
// In warp_per_row five shuffles replace the steps in shared memory, and no warp waits for another. A lane issues four
// loads before it uses the first. Limits: 4 bytes (2) per access, and few long rows leave most of the GPU idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
#if HAS_INDEX
typedef int Out;
#else
typedef T Out;
#endif

enum class Mode { sum, mean, max, min, prod, l1, l2, argmax, argmin };
constexpr Mode mode = Mode::OP;
constexpr bool is_index = mode == Mode::argmax || mode == Mode::argmin;
constexpr bool is_max = mode == Mode::max || mode == Mode::argmax, is_min = mode == Mode::min || mode == Mode::argmin;
constexpr int no_index = 0x7fffffff;

// Return the value to start with: infinity for a minimum, -infinity for a maximum, 1 for a product, 0 for a sum.
__device__ __forceinline__ float identity() {
    if (is_max || is_min) return __int_as_float(is_max ? 0xff800000 : 0x7f800000);
    return mode == Mode::prod ? 1.0f : 0.0f;
}

// Combine a value and its index with the result so far. For maximum and minimum, NaN takes precedence over all numbers,
// and of equal values the one with the smallest index.
__device__ __forceinline__ void join(float& result, int& index, float value, int at) {
    if (is_max || is_min) {
        const bool is_nan = value != value, was_nan = result != result;
        const bool better = (is_max ? value > result : value < result) || (is_nan && !was_nan);
        const bool equal = value == result || (is_nan && was_nan);
        if (!better && !(is_index && equal && at < index)) return;
        result = value;
        index = at;
    } else {
        result = mode == Mode::prod ? result * value : result + value;
    }
}

// The number to join for an element: its absolute value or square for a norm.
__device__ __forceinline__ float term(float x) { return mode == Mode::l1 ? fabsf(x) : mode == Mode::l2 ? x * x : x; }

// The output for the joined elements of an axis.
__device__ __forceinline__ Out finished(float result, int index, int axis) {
    if (is_index) return (Out)index;
    return (Out)(mode == Mode::mean ? result / axis : mode == Mode::l2 ? sqrtf(result) : result);
}

#if BY_WARP
extern "C" __global__ void __launch_bounds__(32 * ROWS_PER_BLOCK)
    reduce_warp_per_row(const T* __restrict__ x, Out* __restrict__ out, int outer, int axis, int inner) {
    // x [outer][axis]; out [outer]
    const int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
    if (row >= outer) return;  // a whole warp
    const T* source = x + (size_t)row * axis;
    float result = identity();
    int index = no_index;
    for (int first = threadIdx.x; first < axis; first += 4 * 32) {
        T element[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            if (first + u * 32 < axis) element[u] = source[first + u * 32];
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            if (first + u * 32 < axis) join(result, index, term((float)element[u]), first + u * 32);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, result, step);
        join(result, index, other, is_index ? __shfl_xor_sync(0xffffffffu, index, step) : 0);
    }
    if (threadIdx.x == 0) out[row] = finished(result, index, axis);
}
#else
extern "C" __global__ void __launch_bounds__(BLOCK)
    reduce_block_per_row(const T* __restrict__ x, Out* __restrict__ out, int outer, int axis, int inner) {
    // x [outer][axis]; out [outer]
    __shared__ float results[BLOCK];
    __shared__ int indices[BLOCK];
    const T* source = x + (size_t)blockIdx.x * axis;
    float result = identity();
    int index = no_index;
    for (int a = threadIdx.x; a < axis; a += BLOCK) join(result, index, term((float)source[a]), a);
    results[threadIdx.x] = result;
    if (is_index) indices[threadIdx.x] = index;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x >= half) continue;
        join(result, index, results[threadIdx.x + half], is_index ? indices[threadIdx.x + half] : 0);
        results[threadIdx.x] = result;
        if (is_index) indices[threadIdx.x] = index;
    }
    if (threadIdx.x == 0) out[blockIdx.x] = finished(result, index, axis);
}
#endif
