// /// opbench
// title     = "nhwc, global pooling: a block has COLUMNS 16-byte vectors of channels and ROWS threads for each"
// builds_on = "nhwc_vector"
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "unrolled", "compile_time_sizes"]
// tune      = { ROWS = [16, 32, 8], COLUMNS = [8, 16] }
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
// ///
//
// Where the window is the whole image there is one output for each channel. One thread for each would read all pixels
// one after the other; here ROWS threads read every ROWS-th pixel each, and their sums are added in shared memory.
// COLUMNS vectors of up to 16 bytes are at least 128 bytes that lie together. Limit: HBM; for few channels the loads'
// latency.
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int LANES = C / PACKS;
constexpr int GROUPS = (PACKS + COLUMNS - 1) / COLUMNS;
typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(ROWS* COLUMNS)
    avgpool2d_nhwc_block_per_channels(const Pack* __restrict__ x, Pack* __restrict__ out) {
    // x [n][PIXELS][PACKS]; out [n][PACKS]
    __shared__ float sums[ROWS][COLUMNS * LANES];
    const int image = blockIdx.x / GROUPS, pack = blockIdx.x % GROUPS * COLUMNS + threadIdx.x;
    float sum[LANES] = {};
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
    for (int lane = 0; lane < LANES; ++lane) sums[threadIdx.y][lane * COLUMNS + threadIdx.x] = sum[lane];
    __syncthreads();
    if (threadIdx.y > 0 || pack >= PACKS) return;
    Vector<T, LANES> result;
#pragma unroll
    for (int lane = 0; lane < LANES; ++lane) {
        float total = 0.0f;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) total += sums[row][lane * COLUMNS + threadIdx.x];
        result.lane(lane) = (T)(total * (1.0f / PIXELS));
    }
    out[(size_t)image * PACKS + pack] = result.raw;
}
