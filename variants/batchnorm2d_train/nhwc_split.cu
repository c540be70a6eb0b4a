// /// opbench
// mechanism = [
//     "coalesced", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes", "fewer_passes",
//     "split_k",
// ]
// supports = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "relu", "add", "add_relu"] }
// requires = ["n * c * h * w <= 4294966272", "cdiv(c // WIDTH, ACROSS) <= 65535"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// ADD    = "epilogue in ('add', 'add_relu')"
// RELU   = "epilogue in ('relu', 'add_relu')"
// C      = "c"
// ACROSS = "min(c // WIDTH, 32)"
// DOWN   = "BLOCK // ACROSS"
//
// [workspace]
// part_mean    = "c * PARTS"
// part_squares = "c * PARTS"
//
// [[launch]]
// kernel = "statistics_of_parts"
// grid   = ["PARTS", "cdiv(c // WIDTH, ACROSS)"]
// block  = ["BLOCK"]
// args   = ["x", "part_mean", "part_squares", "n * h * w"]
//
// [[launch]]
// kernel = "statistics_of_channels"
// grid   = ["c"]
// block  = ["128"]
// args   = [
//   "part_mean", "part_squares", "running_mean", "running_variance", "mean", "rstd", "new_running_mean",
//   "new_running_variance", "n * h * w", "momentum_percent",
// ]
//
// [[launch]]
// kernel = "normalise"
// grid   = ["cdiv(cdiv(n * h * w, UNROLL) * (c // WIDTH), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "rstd", "residual?", "out", "n * h * w"]
//
// [variant.nhwc_split]
// title     = "nhwc: one thread per channel, pixels split over SPLIT blocks; a second kernel merges statistics"
// builds_on = "welford"
// tune      = { SPLIT = [512, 1024, 256], BLOCK = [256, 512] }
// define    = { WIDTH = "1", UNROLL = "1", BACKWARDS = "0", PARTS = "min(SPLIT, cdiv(n * h * w, 4 * DOWN))" }
//
// [variant.nhwc_vector]
// title     = "nhwc: 16-byte accesses along the channels; the statistics of UNROLL pixels are merged at once"
// builds_on = "nhwc_split"
// mechanism = ["vectorised_access", "unrolled"]
// tune      = { SPLIT = [1024, 512, 2048], UNROLL = [8, 4], BLOCK = [256, 512], BACKWARDS = [1, 0] }
// define    = { WIDTH = "lanes", PARTS = "min(SPLIT, cdiv(n * h * w, UNROLL * DOWN))" }
// ///
//
// Neighbouring lanes process neighbouring channels, so accesses use whole sectors, and each thread keeps the moments of
// its channels in registers. The rows of threads in a block process different pixels; a tree reduction in shared memory
// merges their moments. The number of parts depends only on the problem, and the order of each merge is fixed, so the
// bits are the same on every GPU. nhwc_vector subtracts from the UNROLL pixels that it has loaded their own mean and
// merges them as one (Chan's formula), with one division for all lanes and pixels. With BACKWARDS, the second pass
// starts from the end of the image, which the L2 cache still holds. Limits: nhwc_split has 4 bytes (2) per access and a
// division per element; nhwc_vector is bound by HBM.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr unsigned PACKS = C / WIDTH;  // of a pixel

typedef Packed<T, WIDTH> Pack;

// The moments of LANES channels over the same pixels; squares: the sums of (x - mean)^2.
template <int LANES>
struct Moments {
    float count, mean[LANES], squares[LANES];

    __device__ __forceinline__ void merge(const Moments& other) {
        if (other.count == 0.0f) return;
        const float share = other.count / (count + other.count);
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float delta = other.mean[lane] - mean[lane];
            mean[lane] += delta * share;
            squares[lane] += other.squares[lane] + delta * delta * count * share;
        }
        count += other.count;
    }

    template <int PIXELS>
    __device__ __forceinline__ void add(const Pack (&pack)[PIXELS]) {
        Moments other;
        other.count = PIXELS;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            float sum = 0.0f, squared = 0.0f;
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sum += lane_of<T>(pack[i], lane);
            sum *= 1.0f / PIXELS;
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) {
                const float centred = lane_of<T>(pack[i], lane) - sum;
                squared += centred * centred;
            }
            other.mean[lane] = sum;
            other.squares[lane] = squared;
        }
        merge(other);
    }
};

// Pixels of a part; the last parts may have fewer, or none.
__device__ __forceinline__ unsigned part_size(unsigned pixels) { return (pixels + PARTS - 1) / PARTS; }

extern "C" __global__ void __launch_bounds__(BLOCK)
    statistics_of_parts(const Pack* __restrict__ x, float* __restrict__ part_mean, float* __restrict__ part_squares,
                        unsigned pixels) {
    // x [pixels][PACKS]; part_mean, part_squares [PARTS][C]
    __shared__ float shared[2 * WIDTH + 1][BLOCK];
    const unsigned t = threadIdx.x, row = t / ACROSS, pack = blockIdx.y * ACROSS + t % ACROSS, size = part_size(pixels);
    const unsigned end = min((blockIdx.x + 1) * size, pixels);
    Moments<WIDTH> own = {};
    if (row < DOWN && pack < PACKS) {
        unsigned i = blockIdx.x * size + row;
        for (; i + (UNROLL - 1) * DOWN < end; i += UNROLL * DOWN) {
            Pack packs[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) packs[u] = x[(size_t)(i + u * DOWN) * PACKS + pack];
            own.add(packs);
        }
        for (; i < end; i += DOWN) {
            const Pack packs[1] = {x[(size_t)i * PACKS + pack]};
            own.add(packs);
        }
    }
    shared[2 * WIDTH][t] = own.count;
#pragma unroll
    for (int lane = 0; lane < WIDTH; ++lane) {
        shared[lane][t] = own.mean[lane];
        shared[WIDTH + lane][t] = own.squares[lane];
    }
    for (unsigned rows = DOWN, half; rows > 1; rows = half) {
        half = (rows + 1) / 2;
        __syncthreads();
        if (row + half >= rows) continue;
        const unsigned above = t + half * ACROSS;
        Moments<WIDTH> other;
        other.count = shared[2 * WIDTH][above];
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            other.mean[lane] = shared[lane][above];
            other.squares[lane] = shared[WIDTH + lane][above];
        }
        own.merge(other);
        shared[2 * WIDTH][t] = own.count;
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            shared[lane][t] = own.mean[lane];
            shared[WIDTH + lane][t] = own.squares[lane];
        }
    }
    if (row != 0 || pack >= PACKS) return;
#pragma unroll
    for (int lane = 0; lane < WIDTH; ++lane) {
        part_mean[blockIdx.x * C + pack * WIDTH + lane] = own.mean[lane];
        part_squares[blockIdx.x * C + pack * WIDTH + lane] = own.squares[lane];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    statistics_of_channels(const float* __restrict__ part_mean, const float* __restrict__ part_squares,
                           const float* running_mean, const float* running_variance, float* __restrict__ mean_out,
                           float* __restrict__ rstd_out, float* new_running_mean, float* new_running_variance,
                           unsigned pixels, int momentum_percent) {
    // part_mean, part_squares [PARTS][C]; the others [C], the running ones perhaps in place
    __shared__ Moments<1> warps[4];
    const int channel = blockIdx.x;
    const unsigned size = part_size(pixels);
    Moments<1> own = {};
#pragma unroll 4
    for (unsigned part = threadIdx.x; part < PARTS; part += 128) {
        const unsigned first = min(part * size, pixels), end = min(first + size, pixels);
        own.merge({(float)(end - first), {part_mean[part * C + channel]}, {part_squares[part * C + channel]}});
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        own.merge({__shfl_down_sync(0xffffffffu, own.count, distance),
                   {__shfl_down_sync(0xffffffffu, own.mean[0], distance)},
                   {__shfl_down_sync(0xffffffffu, own.squares[0], distance)}});
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < 4; ++warp) own.merge(warps[warp]);
    const float momentum = momentum_percent / 100.0f, variance = own.squares[0] / (float)pixels;
    const float unbiased = pixels > 1 ? variance * ((float)pixels / (float)(pixels - 1)) : variance;
    mean_out[channel] = own.mean[0];
    rstd_out[channel] = 1.0f / sqrtf(variance + 1e-5f);
    new_running_mean[channel] = (1.0f - momentum) * running_mean[channel] + momentum * own.mean[0];
    new_running_variance[channel] = (1.0f - momentum) * running_variance[channel] + momentum * unbiased;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    normalise(const Pack* __restrict__ x, const float* __restrict__ scale, const float* __restrict__ shift,
              const float* __restrict__ mean, const float* __restrict__ rstd,
#if ADD
              const Pack* __restrict__ residual,
#endif
              Pack* __restrict__ out, unsigned pixels) {
    // x, residual, out [pixels][PACKS]; the others [C]
    const unsigned groups = (pixels + UNROLL - 1) / UNROLL;
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= groups * PACKS) return;
    const unsigned pack = i % PACKS, group = BACKWARDS ? groups - 1 - i / PACKS : i / PACKS;  // UNROLL pixels each
    Pack packs[UNROLL], added[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned pixel = group * UNROLL + u;
        if (pixel < pixels) packs[u] = __ldcs(x + (size_t)pixel * PACKS + pack);
#if ADD
        if (pixel < pixels) added[u] = __ldcs(residual + (size_t)pixel * PACKS + pack);
#endif
    }
    float centre[WIDTH], factor[WIDTH], offset[WIDTH];
#pragma unroll
    for (int lane = 0; lane < WIDTH; ++lane) {
        const unsigned channel = pack * WIDTH + lane;
        centre[lane] = mean[channel];
        factor[lane] = rstd[channel] * scale[channel];
        offset[lane] = shift[channel];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned pixel = group * UNROLL + u;
        if (pixel >= pixels) break;
#pragma unroll
        for (int lane = 0; lane < WIDTH; ++lane) {
            float value = fmaf(lane_of<T>(packs[u], lane) - centre[lane], factor[lane], offset[lane]);
#if ADD
            value += lane_of<T>(added[u], lane);
#endif
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            reinterpret_cast<T*>(&packs[u])[lane] = (T)value;
        }
        __stcs(out + (size_t)pixel * PACKS + pack, packs[u]);
    }
}
