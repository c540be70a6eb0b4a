// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, pixels split over SPLIT blocks, then merged in order"
// builds_on = "registers"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "unrolled", "split_k",
// ]
// tune      = { SPLIT = [32, 16, 64], UNROLL = [4, 8, 2], BLOCK = [256, 512] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires  = ["batch <= 65535"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// SILU   = "activation == 'silu'"
// GROUPS = "groups"
// WIDTH  = "width"
// PIXELS = "pixels"
// LANES  = "lanes"
// PACKS  = "channels // lanes"
// ACROSS = "min(PACKS, 32)"
// DOWN   = "BLOCK // ACROSS"
// PARTS  = "min(SPLIT, cdiv(pixels, DOWN))"
//
// [workspace]
// part_mean    = "batch * PARTS * PACKS"
// part_squares = "batch * PARTS * PACKS"
//
// [[launch]]
// kernel = "groupnorm_parts"
// grid   = ["PARTS", "batch", "cdiv(PACKS, ACROSS)"]
// block  = ["BLOCK"]
// args   = ["x", "part_mean", "part_squares"]
//
// [[launch]]
// kernel = "groupnorm_merge"
// grid   = ["cdiv(batch * groups, 4)"]
// block  = ["128"]
// args   = ["part_mean", "part_squares", "mean", "rstd", "batch * groups"]
//
// [[launch]]
// kernel = "groupnorm_apply"
// grid   = ["cdiv(cdiv(pixels, UNROLL) * PACKS, BLOCK)", "batch"]
// block  = ["BLOCK"]
// args   = ["x", "weight", "bias", "mean", "rstd", "out"]
// ///
//
// The channels of a group are only a few bytes of each pixel, so blocks read whole pixels, with all groups. Each thread
// computes the mean of UNROLL vectors and the sum of squares about it, and merges them with those of its previous
// vectors (Chan, Golub and LeVeque, 1979): a mean of many standard deviations loses no precision. The order of all
// merges depends only on the problem and the config. Limit: x is read twice, the second time partly from the L2 cache.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int SIZE = (PIXELS + PARTS - 1) / PARTS;  // pixels of a part; the last parts may have fewer

__device__ __forceinline__ float activated(float value) {
#if SILU
    return value / (1.0f + __expf(-value));
#else
    return value;
#endif
}

// Number, mean, and sum of squares about the mean, of some elements.
struct Moments {
    float count, mean, squares;

    __device__ __forceinline__ void merge(const Moments& other) {
        const float both = count + other.count, difference = other.mean - mean;
        if (other.count == 0.0f) return;
        mean += difference * (other.count / both);
        squares += other.squares + difference * difference * (count * (other.count / both));
        count = both;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_parts(const T* __restrict__ x, float* __restrict__ part_mean, float* __restrict__ part_squares) {
    // x [batch][PIXELS][PACKS][LANES]; part_mean, part_squares [batch][PARTS][PACKS]
    __shared__ Moments shared[BLOCK];
    const int row = threadIdx.x / ACROSS, pack = blockIdx.z * ACROSS + threadIdx.x % ACROSS;
    const int end = min(((int)blockIdx.x + 1) * SIZE, PIXELS);
    const Pack* source = reinterpret_cast<const Pack*>(x) + (size_t)blockIdx.y * PIXELS * PACKS + pack;
    Moments own = {0.0f, 0.0f, 0.0f};
    if (row < DOWN && pack < PACKS) {
        for (int first = blockIdx.x * SIZE + row; first < end; first += UNROLL * DOWN) {
            Pack packs[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (first + u * DOWN < end) packs[u] = source[(size_t)(first + u * DOWN) * PACKS];
            }
            Moments next = {0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (first + u * DOWN >= end) break;
                next.count += LANES;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) next.mean += lane_of<T>(packs[u], lane);
            }
            next.mean /= next.count;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (first + u * DOWN >= end) break;
#pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    const float difference = lane_of<T>(packs[u], lane) - next.mean;
                    next.squares += difference * difference;
                }
            }
            own.merge(next);
        }
    }
    shared[threadIdx.x] = own;
    for (int rows = DOWN, half; rows > 1; rows = half) {
        half = (rows + 1) / 2;
        __syncthreads();
        if (row + half >= rows) continue;
        own.merge(shared[threadIdx.x + half * ACROSS]);
        shared[threadIdx.x] = own;
    }
    if (row != 0 || pack >= PACKS) return;
    const size_t part = ((size_t)blockIdx.y * PARTS + blockIdx.x) * PACKS + pack;
    part_mean[part] = own.mean;
    part_squares[part] = own.squares;
}

extern "C" __global__ void __launch_bounds__(128)
    groupnorm_merge(const float* __restrict__ part_mean, const float* __restrict__ part_squares,
                    float* __restrict__ mean, float* __restrict__ rstd, int all) {
    // part_mean, part_squares [batch][PARTS][PACKS]; mean, rstd [all]
    const int group = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (group >= all) return;             // true for whole warps only, so shuffles stay safe
    constexpr int packs = WIDTH / LANES;  // vectors of a group in a pixel
    const size_t base = (size_t)(group / GROUPS) * PARTS * PACKS + group % GROUPS * packs;
    Moments own = {0.0f, 0.0f, 0.0f};
    for (int i = lane; i < PARTS * packs; i += 32) {
        const int part = i / packs;
        const size_t place = base + (size_t)part * PACKS + i % packs;
        const int count = max(min(PIXELS - part * SIZE, SIZE), 0) * LANES;
        own.merge({(float)count, part_mean[place], part_squares[place]});
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        own.merge({__shfl_xor_sync(0xffffffffu, own.count, step), __shfl_xor_sync(0xffffffffu, own.mean, step),
                   __shfl_xor_sync(0xffffffffu, own.squares, step)});
    }
    if (lane != 0) return;
    mean[group] = own.mean;
    rstd[group] = rsqrtf(own.squares / own.count + 1e-5f);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    groupnorm_apply(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                    const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ out) {
    // x, out [batch][PIXELS][PACKS][LANES]; weight, bias [PACKS][LANES]; mean, rstd [batch][GROUPS]
    const int i = blockIdx.x * BLOCK + threadIdx.x, pack = i % PACKS, first = i / PACKS * UNROLL;
    if (first >= PIXELS) return;
    const size_t base = ((size_t)blockIdx.y * PIXELS + first) * PACKS + pack;
    const Pack* source = reinterpret_cast<const Pack*>(x) + base;
    Pack* target = reinterpret_cast<Pack*>(out) + base;
    Pack packs[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u < PIXELS) packs[u] = __ldcs(source + u * PACKS);
    }
    const int group = blockIdx.y * GROUPS + pack * LANES / WIDTH;
    const float centre = mean[group], factor = rstd[group];
    float slope[LANES], shift[LANES];
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        slope[lane] = factor * weight[pack * LANES + lane];
        shift[lane] = bias[pack * LANES + lane];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (first + u >= PIXELS) break;
        Vector<T, LANES> result;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            result.lane(lane) = (T)activated((lane_of<T>(packs[u], lane) - centre) * slope[lane] + shift[lane]);
        }
        __stcs(target + u * PACKS, result.raw);
    }
}
