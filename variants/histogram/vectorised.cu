// /// opbench
// mechanism = ["coalesced", "block_reduction", "grid_stride", "vectorised_access", "unrolled"]
//
// [supports]
// low   = ["negated", "zero"]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// BINS  = "bins"
// LOW   = "lower_edge"
// WIDTH = "width"
// LANES = "8 if dtype == 'bf16' else 4"
//
// [[launch]]
// zero = "counts"
//
// [[launch]]
// kernel = "histogram_vectors"
// grid   = ["min(cdiv(n, LANES * BLOCK), BLOCKS_PER_SM * sm_count)"]
// block  = ["BLOCK"]
// args   = ["x", "counts", "n"]
//
// [variant.vectorised]
// title     = "one histogram per warp, UNROLL 16-byte loads in flight per thread"
// builds_on = "warp_copies"
// tune      = { BLOCK = [256, 512], BLOCKS_PER_SM = [4], UNROLL = [2, 8] }
// requires  = ["bins * BLOCK // 32 <= 12288"]
// define    = { COPIES = "BLOCK // 32", BY_LANE = "0" }
//
// [variant.lane_copies]
// title     = "COPIES histograms per block: neighbouring lanes use different copies, in different banks"
// builds_on = "vectorised"
// tune      = { BLOCK = [1024, 512], BLOCKS_PER_SM = [2], UNROLL = [2, 4], COPIES = [8, 32] }
// where     = ["BLOCK == 1024 or (UNROLL == 2 and COPIES == 8)"]
// requires  = ["bins * COPIES <= 12288"]
// define    = { BY_LANE = "1" }
// ///
//
// `vectorised` reads 16 bytes per load and issues UNROLL loads before it counts. In `lane_copies`, the copies of a bin
// are neighbouring words, so lanes with different copies use different banks. All warps share the copies, because their
// atomic additions are executed one after the other anyway (copies per thread: Podlozhnyuk, Histogram calculation in
// CUDA, NVIDIA 2007). On an H200, 8 copies are as fast as 32, where each lane has its own bank. The copies gain 12 %
// with 1000 bins, 9 % with a single bin and nothing with 256 bins.
// Limit: HBM, reading only.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Vector<T, LANES> Lanes;
typedef Packed<T, LANES> Pack;
constexpr int STRIDE = BY_LANE ? COPIES : 1, COPY = BY_LANE ? 1 : BINS;  // words between bins, and between copies

__device__ __forceinline__ void count(int* counters, float value) {
    constexpr float low = LOW, width = WIDTH, scale = BINS / width;
    if (value >= low && value <= low + width)
        atomicAdd(counters + min((int)((value - low) * scale), BINS - 1) * STRIDE, 1);
}

extern "C" __global__ void __launch_bounds__(BLOCK) histogram_vectors(const T* __restrict__ x, int* counts, int n) {
    // x [n], aligned to 16 bytes; counts [BINS], zero at the start
    __shared__ int copies[COPIES * BINS];
    int* counters = copies + (BY_LANE ? threadIdx.x % COPIES : threadIdx.x / 32 * BINS);
    for (int i = threadIdx.x; i < COPIES * BINS; i += BLOCK) copies[i] = 0;
    __syncthreads();
    const unsigned whole = (unsigned)n / LANES, stride = gridDim.x * BLOCK;
    const unsigned thread = blockIdx.x * BLOCK + threadIdx.x;
    const Pack* packs = reinterpret_cast<const Pack*>(x);
    unsigned first = thread;
    for (; first + (UNROLL - 1) * stride < whole; first += UNROLL * stride) {
        Lanes loaded[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) loaded[k].raw = __ldcs(packs + first + k * stride);
#pragma unroll
        for (int k = 0; k < UNROLL; ++k)
#pragma unroll
            for (int i = 0; i < LANES; ++i) count(counters, (float)loaded[k].lane(i));
    }
    for (; first < whole; first += stride) {
        Lanes loaded;
        loaded.raw = __ldcs(packs + first);
#pragma unroll
        for (int i = 0; i < LANES; ++i) count(counters, (float)loaded.lane(i));
    }
    const unsigned rest = LANES * whole + thread;  // the first threads count the last n % LANES elements
    if (rest < n) count(counters, (float)x[rest]);
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += BLOCK) {
        int sum = 0;
#pragma unroll 8
        for (int copy = 0; copy < COPIES; ++copy) {
            const int rotated_copy = BY_LANE ? (copy + threadIdx.x) % COPIES : copy;  // neighbours read different banks
            sum += copies[bin * STRIDE + rotated_copy * COPY];
        }
        if (sum != 0) atomicAdd(counts + bin, sum);
    }
}
