// Reductions to a sum, product, norm, extreme or the index of an extreme, for kernels on CUDA cores.
#pragma once
#include <opbench/vectors.cuh>

namespace opbench {

enum class Reduction { sum, mean, max, min, prod, l1, l2, argmax, argmin };

constexpr bool gives_index(Reduction op) { return op == Reduction::argmax || op == Reduction::argmin; }
constexpr bool selects_largest(Reduction op) { return op == Reduction::max || op == Reduction::argmax; }
constexpr bool selects_smallest(Reduction op) { return op == Reduction::min || op == Reduction::argmin; }

template <bool has_index>
struct IndexMember {
    static constexpr int none = 0x7fffffff;
    int index;
};
template <>
struct IndexMember<false> {};

// The result of a part of the elements. NaN comes before all numbers; among equal elements the first index wins.
template <Reduction op>
struct Partial : IndexMember<gives_index(op)> {
    static constexpr bool has_index = gives_index(op), selects = selects_largest(op) || selects_smallest(op);
    float value;

    // Return the result of no elements.
    static __device__ __forceinline__ Partial empty() {
        Partial part;
        part.value = op == Reduction::prod ? 1.0f : 0.0f;
        if constexpr (selects) part.value = __int_as_float(selects_largest(op) ? 0xff800000 : 0x7f800000);
        if constexpr (has_index) part.index = Partial::none;
        return part;
    }

    // Return whether x replaces the value. Comparisons with NaN are false; `&` and `|` need no branch, unlike `&&`.
    __device__ __forceinline__ bool is_replaced_by(float x) const {
        return !(selects_largest(op) ? x <= value : x >= value) & (value == value);
    }

    // Add an element, whose index must be larger than those of the previous elements. An infinity that equals the
    // result of no elements is not recorded: if all elements are that infinity, `result` returns index 0.
    __device__ __forceinline__ void add(float x, int at) {
        if constexpr (selects) {
            const bool replace = is_replaced_by(x);
            value = replace ? x : value;
            if constexpr (has_index) this->index = replace ? at : this->index;
        } else if constexpr (op == Reduction::prod) {
            value *= x;
        } else if constexpr (op == Reduction::l2) {
            value = fmaf(x, x, value);
        } else {
            value += op == Reduction::l1 ? fabsf(x) : x;
        }
    }

    // Join with the result of other elements.
    __device__ __forceinline__ void join(const Partial& other) {
        if constexpr (selects) {
            bool replace = is_replaced_by(other.value);
            if constexpr (has_index) {
                const bool equal = (other.value == value) | ((other.value != other.value) & (value != value));
                replace |= equal & (other.index < this->index);
                this->index = replace ? other.index : this->index;
            }
            value = replace ? other.value : value;
        } else {
            value = op == Reduction::prod ? value * other.value : value + other.value;
        }
    }

    // Join the results of the lanes whose numbers differ in the bits from `first` to `last`, both powers of two.
    __device__ __forceinline__ void join_lanes(int first, int last) {
#pragma unroll
        for (int step = last; step >= first; step /= 2) {
            Partial other;
            other.value = __shfl_xor_sync(0xffffffffu, value, step);
            if constexpr (has_index) other.index = __shfl_xor_sync(0xffffffffu, this->index, step);
            join(other);
        }
    }

    // Return the output of a whole axis of `length` elements.
    template <class Out>
    __device__ __forceinline__ Out result(int length) const {
        if constexpr (has_index)
            return this->index == Partial::none ? 0 : this->index;  // all elements are the same infinity
        else if constexpr (op == Reduction::mean)
            return (Out)(value / length);
        else
            return (Out)(op == Reduction::l2 ? sqrtf(value) : value);
    }
};

// Join the results of the `threads` threads of a row (threadIdx.y) in its first thread; `shared` has a line per row.
template <int threads, class Part, int warps>
__device__ __forceinline__ void join_row(Part& part, Part (*shared)[warps]) {
    part.join_lanes(1, (threads < 32 ? threads : 32) / 2);
    if (warps == 1) return;
    if (threadIdx.x % 32 == 0) shared[threadIdx.y][threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x >= 32) return;  // whole warps
    part = threadIdx.x < warps ? shared[threadIdx.y][threadIdx.x] : Part::empty();
    part.join_lanes(1, 16);
}

}  // namespace opbench
