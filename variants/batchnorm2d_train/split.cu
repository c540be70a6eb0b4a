// /// opbench
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "grid_stride",
//     "fewer_passes", "split_k",
// ]
// supports = { dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
// requires = ["n * c * h * w <= 4294966272", "c <= 65535"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// ADD   = "epilogue in ('add', 'add_relu')"
// RELU  = "epilogue in ('relu', 'add_relu')"
// C     = "c"
// PLANE = "h * w"
//
// [workspace]
// part_mean    = "c * PARTS"
// part_squares = "c * PARTS"
//
// [[launch]]
// kernel = "statistics_of_parts"
// grid   = ["PARTS", "c"]
// block  = ["BLOCK"]
// args   = ["x", "part_mean", "part_squares", "n"]
//
// [[launch]]
// kernel = "statistics_of_channels"
// grid   = ["c"]
// block  = ["128"]
// args   = [
//   "part_mean", "part_squares", "running_mean", "running_variance", "mean", "rstd", "new_running_mean",
//   "new_running_variance", "n", "momentum_percent",
// ]
//
// [[launch]]
// kernel = "normalise"
// grid   = ["cdiv(n * c * h * w // WIDTH, BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "rstd", "residual?", "out", "n"]
//
// [variant.split]
// title     = "up to SPLIT blocks per channel; a second kernel merges their statistics, a third one normalises"
// builds_on = "welford"
// tune      = { SPLIT = [32, 16, 64], BLOCK = [256, 512] }
// define    = { WIDTH = "1", UNROLL = "1", BACKWARDS = "0", PARTS = "min(SPLIT, cdiv(n * h * w, BLOCK))" }
//
// [variant.vectorised]
// title     = "16-byte accesses, UNROLL vectors in flight, whose statistics are merged at once"
// builds_on = "split"
// mechanism = ["vectorised_access", "unrolled"]
// tune      = { SPLIT = [32, 16, 64], UNROLL = [4, 2], BLOCK = [256, 512], BACKWARDS = [1, 0] }
// define    = { WIDTH = "lanes", PARTS = "min(SPLIT, cdiv(n * h * w // lanes, BLOCK * UNROLL))" }
// ///
//
// The number of parts depends only on the problem, and the order of each merge is fixed, so the bits are the same on
// every GPU, whichever block finishes first. A thread subtracts from the elements that it has loaded their own mean, in
// registers and without a division per element, and merges them by Chan's formula, as all further results. So no shift
// has to be estimated, and a mean of any size loses no precision. With BACKWARDS, the second pass starts from the end
// of the image, which the L2 cache still holds. Limits: split has 4 bytes (2) per access and a division per element;
// vectorised is bound by HBM, through which x passes twice: statistics from the convolution's epilogue would save a
// pass.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned VECTORS = PLANE / WIDTH;  // of a plane

typedef Packed<T, WIDTH> Pack;

struct Moments {
    float count, mean, squares;  // squares: the sum of (x - mean)^2

    __device__ __forceinline__ void merge(const Moments& other) {
        if (other.count == 0.0f) return;
        const float delta = other.mean - mean, share = other.count / (count + other.count);
        mean += delta * share;
        squares += other.squares + delta * delta * count * share;
        count += other.count;
    }

    template <int PACKS>
    __device__ __forceinline__ void add(const Pack (&pack)[PACKS]) {
        Moments other = {PACKS * WIDTH, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < PACKS * WIDTH; ++i) {
            other.mean += (float)reinterpret_cast<const T*>(&pack[i / WIDTH])[i % WIDTH];
        }
        other.mean *= 1.0f / (PACKS * WIDTH);
#pragma unroll
        for (int i = 0; i < PACKS * WIDTH; ++i) {
            const float centred = (float)reinterpret_cast<const T*>(&pack[i / WIDTH])[i % WIDTH] - other.mean;
            other.squares += centred * centred;
        }
        merge(other);
    }

    __device__ __forceinline__ Moments from_lane_above(int distance) const {
        return {__shfl_down_sync(0xffffffffu, count, distance), __shfl_down_sync(0xffffffffu, mean, distance),
                __shfl_down_sync(0xffffffffu, squares, distance)};
    }
};

// Those of a whole block, in thread 0.
template <int WARPS>
__device__ __forceinline__ Moments over_block(Moments own) {
    __shared__ Moments warps[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) own.merge(own.from_lane_above(distance));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < WARPS; ++warp) own.merge(warps[warp]);
    }
    return own;
}

// Vectors of a part; the last parts may have fewer, or none.
__device__ __forceinline__ unsigned part_size(int n) { return ((unsigned)n * VECTORS + PARTS - 1) / PARTS; }

extern "C" __global__ void __launch_bounds__(BLOCK)
    statistics_of_parts(const Pack* __restrict__ x, float* __restrict__ part_mean, float* __restrict__ part_squares,
                        int n) {
    // x [n][C][VECTORS]; part_mean, part_squares [C][PARTS]
    const unsigned part = blockIdx.x, channel = blockIdx.y, size = part_size(n);
    const unsigned end = min((part + 1) * size, (unsigned)n * VECTORS);
    const auto at = [=](unsigned i) { return ((size_t)(i / VECTORS) * C + channel) * VECTORS + i % VECTORS; };
    Moments own = {0.0f, 0.0f, 0.0f};
    unsigned i = part * size + threadIdx.x;
    for (; i + (UNROLL - 1) * BLOCK < end; i += UNROLL * BLOCK) {
        Pack pack[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) pack[u] = x[at(i + u * BLOCK)];
        own.add(pack);
    }
    for (; i < end; i += BLOCK) {
        const Pack pack[1] = {x[at(i)]};
        own.add(pack);
    }
    own = over_block<BLOCK / 32>(own);
    if (threadIdx.x != 0) return;
    part_mean[channel * PARTS + part] = own.mean;
    part_squares[channel * PARTS + part] = own.squares;
}

extern "C" __global__ void __launch_bounds__(128)
    statistics_of_channels(const float* __restrict__ part_mean, const float* __restrict__ part_squares,
                           const float* running_mean, const float* running_variance, float* __restrict__ mean_out,
                           float* __restrict__ rstd_out, float* new_running_mean, float* new_running_variance, int n,
                           int momentum_percent) {
    // part_mean, part_squares [C][PARTS]; the others [C], the running ones perhaps in place
    const int channel = blockIdx.x;
    const unsigned size = part_size(n), all = (unsigned)n * VECTORS;
    Moments own = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (unsigned part = threadIdx.x; part < PARTS; part += 128) {
        const unsigned first = min(part * size, all), end = min(first + size, all);
        own.merge(
            {(float)((end - first) * WIDTH), part_mean[channel * PARTS + part], part_squares[channel * PARTS + part]});
    }
    own = over_block<4>(own);
    if (threadIdx.x != 0) return;
    const float pixels = (float)n * PLANE, momentum = momentum_percent / 100.0f;
    const float variance = own.squares / pixels;
    const float unbiased = pixels > 1.0f ? variance * (pixels / (pixels - 1.0f)) : variance;
    mean_out[channel] = own.mean;
    rstd_out[channel] = 1.0f / sqrtf(variance + 1e-5f);
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * own.mean;
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * unbiased;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    normalise(const Pack* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
              const float* __restrict__ mean, const float* __restrict__ rstd,
#if ADD
              const Pack* __restrict__ residual,
#endif
              Pack* __restrict__ out, int n) {
    // x, residual, out [n][C][VECTORS]; the others [C]
    const unsigned all = (unsigned)n * (C * VECTORS);
    const unsigned first = (BACKWARDS ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * (BLOCK * UNROLL) + threadIdx.x;
    Pack pack[UNROLL], added[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u * BLOCK < all) pack[u] = __ldcs(x + first + u * BLOCK);
#if ADD
        if (first + u * BLOCK < all) added[u] = __ldcs(residual + first + u * BLOCK);
#endif
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= all) break;
        const int channel = (int)(i / VECTORS % C);
        const float centre = mean[channel], factor = rstd[channel] * scale[channel], offset = shift[channel];
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            T& element = reinterpret_cast<T*>(&pack[u])[lane];
            float value = fmaf((float)element - centre, factor, offset);
#if ADD
            value += lane_of<T>(added[u], lane);
#endif
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            element = (T)value;
        }
        __stcs(out + i, pack[u]);
    }
}
