// /// opbench
// title     = "radix select: histograms of probabilities and counts, 10 bits of the threshold per pass"
// builds_on = "warp_sums"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_barriers", "fewer_passes", "compile_time_sizes",
//     "fewer_operations",
// ]
// tune      = { BLOCK = [1024, 512] }
// supports  = { filter = ["top_k_top_p", "top_k", "top_p"], dtype = ["f32", "bf16", "f16"] }
//
// [define]
// BF16    = "dtype == 'bf16'"
// F16     = "dtype == 'f16'"
// TOP_K   = "filter != 'top_p'"
// TOP_P   = "filter != 'top_k'"
// LANES   = "lanes"
// VECTORS = "cols // lanes"
//
// [[launch]]
// kernel = "sampling_radix"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["probabilities", "top_k?", "top_p?", "uniform", "token", "probability"]
// ///
//
// The upper 10 bits of a number between 0 and 1 are its exponent and three more bits, so the elements of a row are
// distributed over many bins. One scan over the bins finds the bin of the smallest element to keep. The next pass
// counts only elements of that bin, by their next 10 bits. Both filters use the first histogram: top_k and top_p
// together take 5 passes in f32, and 3 in bf16 and f16, which have fewer bits. Limit: atomics on shared memory in the
// first pass, and one block per row, so few rows leave most of the GPU idle. Idea: radix selection, as in Alabi et al.,
// "Fast K-selection algorithms for graphics processing units" (2012).
#include <opbench/vectors.cuh>
using namespace opbench;

#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#elif F16
#include <cuda_fp16.h>
typedef __half T;
#else
typedef float T;
#endif
typedef unsigned long long Mass;  // in units of 2^-31

// Return the probability clamped to the range from 0 to 1; 0 for NaN.
__device__ __forceinline__ float clamped(float p) { return p > 0.0f ? fminf(p, 1.0f) : 0.0f; }

// Return the bits of a clamped probability; as integers they have the same order as the probabilities.
__device__ __forceinline__ unsigned code_of(float p) { return __float_as_uint(p); }
constexpr unsigned CODE_OF_ONE = 0x3f800000;

__device__ __forceinline__ Mass fixed_point_mass(float p) { return (unsigned)(p * 2147483648.0f); }

// Return a share between 0 and 1 as a number of steps of 2^-24.
__device__ __forceinline__ Mass steps_of(float share) { return (unsigned)(clamped(share) * 16777216.0f); }

// Return (total * steps + rounding) / 2^24; the product itself may exceed 64 bits.
__device__ __forceinline__ Mass part_of(Mass total, Mass steps, Mass rounding) {
    return (total >> 24) * steps + (((total & 0xffffff) * steps + rounding) >> 24);
}

constexpr int WARPS = BLOCK / 32, DIGIT_BITS = 10, BINS = 1 << DIGIT_BITS, OWN_BINS = BINS / BLOCK;
constexpr int LOWEST_BIT = BF16 ? 16 : F16 ? 13 : 0;  // lowest bit of a code that can be 1
typedef Packed<T, LANES> Pack;

__device__ __forceinline__ float element(const Pack& pack, int i) { return lane_of<T>(pack, i); }

struct Histogram {
    Mass mass[BINS];
    unsigned number[BINS];
};

// The elements whose code is at least a limit.
struct Selection {
    unsigned limit;
    Mass mass, number;  // of the elements above the bins that are still undecided
};

// Fill a histogram with the elements that are equal to `limit` in all bits from shift + DIGIT_BITS on.
__device__ __forceinline__ void count_digits(const T* row, unsigned limit, int shift, Histogram& histogram) {
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK) {
        histogram.mass[bin] = 0;
        histogram.number[bin] = 0;
    }
    __syncthreads();
    for (int vector = threadIdx.x; vector < VECTORS; vector += BLOCK) {
        const Pack pack = reinterpret_cast<const Pack*>(row)[vector];
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const float p = clamped(element(pack, i));
            const unsigned digits = code_of(p) >> shift;
            if (digits >> DIGIT_BITS != limit >> shift >> DIGIT_BITS) continue;
            const Mass mass = fixed_point_mass(p);
            if (mass != 0) atomicAdd(&histogram.mass[digits % BINS], mass);
            if (TOP_K) atomicAdd(&histogram.number[digits % BINS], 1u);
        }
    }
    __syncthreads();
}

#if !TOP_K
// Return the mass of all bins, in every thread.
__device__ __forceinline__ Mass total_mass(const Histogram& histogram, Mass* sums) {
    Mass sum = 0;
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK) sum += histogram.mass[bin];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += sums[warp];
    __syncthreads();  // all threads have read the sums
    return sum;
}
#endif

// Add to the limit the largest digit for which the kept elements still have the mass, or number, `wanted`. All threads
// get the result, in which the elements of the bins above the digit are kept; after the last digit, also those of its
// own bin.
template <bool by_number>
__device__ __forceinline__ void select_digit(Selection& selection, Mass wanted, int shift, const Histogram& histogram,
                                             Mass (*sums)[WARPS], Selection& shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int top = BINS - 1 - threadIdx.x * OWN_BINS;  // the largest of a thread's bins; thread 0 has the largest
    Mass mass = 0, number = 0;
#pragma unroll
    for (int i = 0; i < OWN_BINS; ++i) {
        mass += histogram.mass[top - i];
        number += histogram.number[top - i];
    }
    Mass masses = mass, numbers = number;  // including the bins of all threads before this one
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Mass more = __shfl_up_sync(0xffffffffu, masses, step), most = __shfl_up_sync(0xffffffffu, numbers, step);
        if (lane >= step) masses += more, numbers += most;
    }
    if (lane == 31) sums[0][warp] = masses, sums[1][warp] = numbers;
    if (threadIdx.x == 0) shared = selection;  // unchanged if even all bins have less than the wanted mass
    __syncthreads();
    masses += selection.mass - mass, numbers += selection.number - number;
    for (int w = 0; w < warp; ++w) masses += sums[0][w], numbers += sums[1][w];
    // Exactly one thread has the bins in which the limit is: the bins above have less than wanted, with this thread's
    // bins it is enough.
    const bool contains_limit =
        by_number ? numbers < wanted && wanted <= numbers + number : masses < wanted && wanted <= masses + mass;
    if (contains_limit) {
        int bin = top;
        while (by_number ? numbers + histogram.number[bin] < wanted : masses + histogram.mass[bin] < wanted) {
            masses += histogram.mass[bin];
            numbers += histogram.number[bin];
            --bin;
        }
        if (shift <= LOWEST_BIT) masses += histogram.mass[bin];
        shared = {selection.limit + ((unsigned)bin << shift), masses, numbers};
    }
    __syncthreads();
    selection = shared;
    __syncthreads();  // all threads have read `shared` before the next digit
}

// Draw the token of a row: the first kept element whose running mass is greater than `wanted`.
__device__ __forceinline__ void draw(const T* row, unsigned limit, Mass total, Mass wanted, Mass (*sums)[WARPS],
                                     int* token, float* probability) {
    if (total == 0) {
        if (threadIdx.x == 0) {
            *token = -1;
            *probability = 0.0f;
        }
        return;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Mass before = 0;  // mass of earlier tiles
    for (int first = 0, buffer = 0; before <= wanted; first += BLOCK, buffer ^= 1) {
        const int vector = first + threadIdx.x;
        Pack pack = {};
        if (vector < VECTORS) pack = reinterpret_cast<const Pack*>(row)[vector];
        Mass thread_mass = 0;
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            const float p = clamped(element(pack, i));
            if (code_of(p) >= limit) thread_mass += fixed_point_mass(p);
        }
        Mass running = thread_mass;  // running mass, including all lanes up to this one
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Mass other = __shfl_up_sync(0xffffffffu, running, step);
            if (lane >= step) running += other;
        }
        if (lane == 31) sums[buffer][warp] = running;
        __syncthreads();  // one barrier per tile: the next tile writes to the other row of `sums`
        Mass tile = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            if (w == warp) running += before + tile;
            tile += sums[buffer][w];
        }
        if (running - thread_mass <= wanted && wanted < running) {
            running -= thread_mass;
#pragma unroll
            for (int i = 0; i < LANES; ++i) {
                const float p = clamped(element(pack, i));
                if (code_of(p) < limit || running > wanted) continue;
                running += fixed_point_mass(p);
                if (running <= wanted) continue;
                *token = vector * LANES + i;
                *probability = (float)((double)fixed_point_mass(p) / (double)total);
            }
        }
        before += tile;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sampling_radix(const T* __restrict__ probabilities,
#if TOP_K
                   const int* __restrict__ top_k,
#endif
#if TOP_P
                   const float* __restrict__ top_p,
#endif
                   const float* __restrict__ uniform, int* __restrict__ token, float* __restrict__ probability) {
    // probabilities [rows][cols]; top_k, top_p, uniform, token, probability [rows]
    __shared__ Histogram first, next;
    __shared__ Mass sums[2][WARPS];
    __shared__ Selection shared;
    const int r = blockIdx.x;
    const T* row = probabilities + (size_t)r * VECTORS * LANES;
    count_digits(row, 0, 30 - DIGIT_BITS, first);
    Selection selection = {};
#if TOP_K
    const Mass most = max(1, min(top_k[r], VECTORS * LANES));
    select_digit<true>(selection, most, 30 - DIGIT_BITS, first, sums, shared);
    for (int shift = 30 - 2 * DIGIT_BITS; shift + DIGIT_BITS > LOWEST_BIT; shift -= DIGIT_BITS) {
        count_digits(row, selection.limit, shift, next);
        select_digit<true>(selection, most, shift, next, sums, shared);
    }
#else
    selection.mass = total_mass(first, sums[0]);
#endif
#if TOP_P
    const Mass wanted = max((Mass)1, part_of(selection.mass, steps_of(top_p[r]), 0xffffff));
    selection = {};
    select_digit<false>(selection, wanted, 30 - DIGIT_BITS, first, sums, shared);
    for (int shift = 30 - 2 * DIGIT_BITS; shift + DIGIT_BITS > LOWEST_BIT; shift -= DIGIT_BITS) {
        count_digits(row, selection.limit, shift, next);
        select_digit<false>(selection, wanted, shift, next, sums, shared);
    }
#endif
    const Mass drawn = part_of(selection.mass, min(steps_of(uniform[r]), (Mass)0xffffff), 0);
    draw(row, selection.limit, selection.mass, drawn, sums, token + r, probability + r);
}
