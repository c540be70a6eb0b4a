// /// opbench
// title    = "one thread per output, which reads its elements one after the other"
// tune     = { BLOCK = [256, 64, 128] }
// define   = { BF16 = "dtype == 'bf16'", HAS_INDEX = "has_index", OP = "op" }
//
// [supports]
// op    = ["sum", "mean", "max", "min", "prod", "l1", "l2", "argmax", "argmin"]
// dtype = ["f32", "bf16"]
//
// [[launch]]
// kernel = "reduce_thread_per_output"
// grid   = ["cdiv(outer * inner, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: the definition. If inner > 1, neighbouring threads read neighbouring elements; otherwise their
// addresses are a whole row apart, and each load uses only 4 bytes (2 in bf16) of a sector of 32 bytes. Limits: one
// load in flight per thread, and few outputs leave most of the GPU idle.
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

// Return the result of no elements: -infinity, infinity, 1 or 0.
__device__ __forceinline__ float identity() {
    if (is_max || is_min) return __int_as_float(is_max ? 0xff800000 : 0x7f800000);
    return mode == Mode::prod ? 1.0f : 0.0f;
}

// Join a value and its index to the result of other elements. NaN comes before all numbers; among equal values the
// first index wins.
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

// Return what an element adds to the result: for a norm its absolute value or its square.
__device__ __forceinline__ float term(float x) { return mode == Mode::l1 ? fabsf(x) : mode == Mode::l2 ? x * x : x; }

// Return the output for the joined elements of an axis.
__device__ __forceinline__ Out finished(float result, int index, int axis) {
    if (is_index) return (Out)index;
    return (Out)(mode == Mode::mean ? result / axis : mode == Mode::l2 ? sqrtf(result) : result);
}

extern "C" __global__ void reduce_thread_per_output(const T* __restrict__ x, Out* __restrict__ out, int outer, int axis,
                                                    int inner) {
    // x [outer][axis][inner]; out [outer][inner]
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (size_t)outer * inner) return;
    const T* source = x + i / inner * axis * inner + i % inner;
    float result = identity();
    int index = no_index;
    for (int a = 0; a < axis; ++a) join(result, index, term((float)source[(size_t)a * inner]), a);
    out[i] = finished(result, index, axis);
}
