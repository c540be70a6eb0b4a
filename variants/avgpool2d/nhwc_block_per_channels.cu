// /// opbench
// title     = "nhwc, global pooling: a block has COLUMNS 16-byte vectors of channels and ROWS threads for each"
// builds_on = "nhwc_vector"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "unrolled", "compile_time_sizes", "overlapped_launch",
// ]
// tune      = { ROWS = [16, 32, 8, 64, 128, 256], COLUMNS = [8, 16, 4, 2] }
// where     = ["COLUMNS >= 8 if ROWS <= 32 else ROWS * COLUMNS == 256 or ROWS == 256 and COLUMNS == 2"]
// supports  = { divisor = ["window", "inside"], layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["window == h and window == w and padding == 0", "n * c <= 2147483640"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// PIXELS = "h * w"
// C      = "c"
// PACKS  = "packs"
//
// [[launch]]
// kernel = "avgpool2d_nhwc_block_per_channels"
// grid   = ["n * cdiv(packs, COLUMNS)"]
// block  = ["COLUMNS", "ROWS"]
// args   = ["x", "out"]
// programmatic = true
// ///
//
// If the window is the whole image, there is one output per channel. One thread per output would read all pixels one
// after the other. Here ROWS threads read every ROWS-th pixel each, and their sums are added in shared memory. COLUMNS
// vectors of up to 16 bytes are usually 128 contiguous bytes or more; with fewer vectors per block, an image with few
// channels has several blocks. Limit: HBM; for few channels the latency of the loads.
#include <opbench/overlap.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int LANES = C / PACKS;
constexpr int GROUPS = (PACKS + COLUMNS - 1) / COLUMNS;
typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(ROWS* COLUMNS)
    avgpool2d_nhwc_block_per_channels(const Pack* x, Pack* __restrict__ out) {
    // x [n][PIXELS][PACKS]; out [n][PACKS]
    __shared__ float sums[COLUMNS * LANES][ROWS + 32 / COLUMNS];  // the lanes of a warp use different banks
    const int image = blockIdx.x / GROUPS, pack = blockIdx.x % GROUPS * COLUMNS + threadIdx.x;
    float sum[LANES] = {};
    let_next_launch_start();
    wait_for_launches_before();
    if (pack < PACKS) {
        const Pack* source = x + (size_t)image * PIXELS * PACKS + pack;
#pragma unroll 4
        for (int pixel = threadIdx.y; pixel < PIXELS; pixel += ROWS) {
            const Pack v = source[(size_t)pixel * PACKS];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum[lane] += lane_of<T>(v, lane);
        }
    }
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) sums[lane * COLUMNS + threadIdx.x][threadIdx.y] = sum[lane];
    __syncthreads();
#pragma unroll
    for (int half = ROWS / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane)
                sums[lane * COLUMNS + threadIdx.x][threadIdx.y] +=
                    sums[lane * COLUMNS + threadIdx.x][threadIdx.y + half];
        }
        __syncthreads();
    }
    if (threadIdx.y > 0 || pack >= PACKS) return;
    Vector<T, LANES> result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane)
        result.lane(lane) = (T)(sums[lane * COLUMNS + threadIdx.x][0] * (1.0f / PIXELS));
    out[(size_t)image * PACKS + pack] = result.raw;
}
