// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, each pixel written scale x scale times"
// builds_on = "nhwc_flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [1, 2, 4], BLOCK = [256, 128], STREAM = [0, 1] }
// supports  = { mode = ["nearest", "bilinear"], layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * h * w <= 4294966272", "scale <= 4"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// C        = "c"
// H        = "h"
// W        = "w"
// S        = "scale"
//
// [[launch]]
// kernel = "upsample2d_nhwc_vector"
// grid   = ["cdiv(n * h * cdiv(w, COLUMNS) * packs, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n"]
// ///
//
// Each vector of channels is loaded once and stored for all its outputs, 16 bytes per lane; all sizes are compile-time
// constants. The COLUMNS pixels of a thread are in flight together. In bilinear mode, a thread loops along a row: it
// interpolates every column of three pixels vertically once, and uses the result for the outputs on both sides. So
// COLUMNS pixels need 3 * (COLUMNS + 2) loads instead of 4 for each output. STREAM marks the stores evict-first in L2.
// Limit: HBM.

#include <opbench/upsampling.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Phases<S> Phase;
constexpr int LANES = 16 / sizeof(T);
constexpr int WIDTH = C % LANES == 0 ? LANES : C % 4 == 0 ? 4 : C % 2 == 0 ? 2 : 1;
constexpr int PACKS = C / WIDTH;  // vectors of a pixel
constexpr int COLUMN_GROUPS = (W + COLUMNS - 1) / COLUMNS;

typedef Packed<T, WIDTH> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_nhwc_vector(const Pack* __restrict__ x, Pack* __restrict__ out, int n) {
    // x [n][H][W][PACKS]; out [n][H * S][W * S][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)(H * COLUMN_GROUPS * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int column = (int)(i / PACKS % COLUMN_GROUPS) * COLUMNS, row = (int)(i / PACKS / COLUMN_GROUPS % H);
    const size_t image = i / PACKS / COLUMN_GROUPS / H;
    const Pack* source = x + image * ((size_t)H * W * PACKS) + pack;
    Pack* target = out + ((image * (H * S) + (size_t)row * S) * (W * S) + column * S) * PACKS + pack;
#if BILINEAR
    const Pack* rows[3] = {source + (size_t)max(row - 1, 0) * (W * PACKS), source + (size_t)row * (W * PACKS),
                           source + (size_t)min(row + 1, H - 1) * (W * PACKS)};
    float down[3][S][WIDTH];  // the previous column, this one and the next one, interpolated vertically
#pragma unroll
    for (int z = 0; z < COLUMNS + 2; ++z) {
        const int place = min(max(column + z - 1, 0), W - 1);
        Pack v[3];
#pragma unroll
        for (int k = 0; k < 3; ++k) v[k] = rows[k][place * PACKS];
#pragma unroll
        for (int r = 0; r < S; ++r) {
            const int top = Phase::before(r) ? 0 : 1;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {
                const float first = (float)reinterpret_cast<const T*>(&v[top])[lane];
                const float second = (float)reinterpret_cast<const T*>(&v[top + 1])[lane];
                down[z % 3][r][lane] = between(first, second, Phase::weight(r));
            }
        }
        if (z < 2) continue;
        if (column + z - 2 >= W) break;
#pragma unroll
        for (int r = 0; r < S; ++r) {
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const int left = z - 2 + (Phase::before(s) ? 0 : 1);
                Pack result;
#pragma unroll
                for (int lane = 0; lane < WIDTH; ++lane) {
                    const float value =
                        between(down[left % 3][r][lane], down[(left + 1) % 3][r][lane], Phase::weight(s));
                    reinterpret_cast<T*>(&result)[lane] = (T)value;
                }
                store_packed<STREAM>(target + ((size_t)r * (W * S) + (z - 2) * S + s) * PACKS, result);
            }
        }
    }
#else
    Pack v[COLUMNS];
#pragma unroll
    for (int z = 0; z < COLUMNS; ++z) {
        if (W % COLUMNS == 0 || column + z < W) v[z] = source[((size_t)row * W + column + z) * PACKS];
    }
#pragma unroll
    for (int r = 0; r < S; ++r) {
#pragma unroll
        for (int z = 0; z < COLUMNS; ++z) {
            if (W % COLUMNS != 0 && column + z >= W) break;
#pragma unroll
            for (int s = 0; s < S; ++s) store_packed<STREAM>(target + ((size_t)r * (W * S) + z * S + s) * PACKS, v[z]);
        }
    }
#endif
}
