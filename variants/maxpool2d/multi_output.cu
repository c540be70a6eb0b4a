// /// opbench
// title     = "ROWS x COLUMNS outputs per thread from vector loads; all sizes are compile-time constants"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1], ROWS = [1, 2, 4], BLOCK = [256, 128] }
// where     = ["ROWS * COLUMNS <= 8"]
// supports  = { dtype = ["f32", "bf16"], positions = ["no", "yes"] }
// requires  = [
//   "n * c * p * q <= 4294966272",
//   "window <= 16",
//   "ROWS * ((COLUMNS - 1) * stride + window) <= 96",
// ]
//
// [define]
// BF16      = "dtype == 'bf16'"
// POSITIONS = "positions == 'yes'"
// WINDOW    = "window"
// STRIDE    = "stride"
// PADDING   = "padding"
// H         = "h"
// W         = "w"
// P         = "p"
// Q         = "q"
//
// [[launch]]
// kernel = "maxpool2d_multi_output"
// grid   = ["cdiv(n * c * cdiv(p, ROWS) * cdiv(q, COLUMNS), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "positions?", "n * c"]
// ///
//
// With 2x2 windows at stride 2 and COLUMNS = 2, a thread reads one float4 of each row and writes one float2: each
// instruction uses whole sectors, and a full multiprocessor has 64 KB in flight per row of outputs. Overlapping windows
// (3x3 at stride 2) share their columns in registers; with ROWS > 1 they share input rows as well, which saves L2
// traffic. The sizes are macros, so divisions become multiplications, and bounds checks that can never fail cost
// nothing. Vectors are as wide as W and COLUMNS * STRIDE allow; rows of odd length need scalar loads. Limit: HBM. In
// bf16, COLUMNS = 4 moves as many bytes per thread as COLUMNS = 2 in float32. Maxima and their positions are computed
// column by column; among equal maxima, the first one in row order counts.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;
constexpr int ROW_GROUPS = (P + ROWS - 1) / ROWS;
constexpr int NEEDED = (COLUMNS - 1) * STRIDE + WINDOW;  // input columns that a thread's outputs depend on
constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE + WINDOW;
constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, COLUMNS* STRIDE);
constexpr int SHIFT = (WIDTH - PADDING % WIDTH) % WIDTH;  // extra columns to the left, so that vectors are aligned
constexpr int VECTORS = (SHIFT + NEEDED + WIDTH - 1) / WIDTH;
constexpr bool COLUMNS_INSIDE = PADDING == 0 && (COLUMN_GROUPS - 1) * COLUMNS * STRIDE + VECTORS * WIDTH <= W;
constexpr bool ROWS_INSIDE = PADDING == 0 && (ROW_GROUPS - 1) * ROWS * STRIDE + INPUT_ROWS <= H;

extern "C" __global__ void __launch_bounds__(BLOCK) maxpool2d_multi_output(const T* __restrict__ x, T* __restrict__ out,
#if POSITIONS
                                                                           unsigned char* __restrict__ positions,
#endif
                                                                           int planes) {
    // x [planes][H][W], out, positions [planes][P][Q], all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (ROW_GROUPS * COLUMN_GROUPS)) return;
    const int column = (int)(i % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
    const unsigned plane = i / COLUMN_GROUPS / ROW_GROUPS;
    const int top = row * STRIDE - PADDING;
    const int left = column * STRIDE - PADDING - SHIFT;  // a multiple of WIDTH
    const T* image = x + (size_t)plane * ((size_t)H * W);
    const float lowest = __int_as_float(0xff800000);  // -infinity

    float largest[ROWS][NEEDED];  // for each input column, the maximum over the rows of each output's window
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int s = 0; s < NEEDED; ++s) largest[r][s] = lowest;
    }
#if POSITIONS
    int row_of[ROWS][NEEDED] = {};  // the row of that maximum in the output's window
#endif
#pragma unroll
    for (int y = 0; y < INPUT_ROWS; ++y) {
        Vector<T, WIDTH> v[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            const int z = left + k * WIDTH;  // a vector is inside the row or outside, never across its end
            const bool inside = (ROWS_INSIDE || (unsigned)(top + y) < H) && (COLUMNS_INSIDE || (unsigned)z < W);
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) v[k].lane(lane) = (T)lowest;
            if (inside) v[k] = *reinterpret_cast<const Vector<T, WIDTH>*>(image + (ptrdiff_t)(top + y) * W + z);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (y < r * STRIDE || y >= r * STRIDE + WINDOW) continue;
#pragma unroll
            for (int s = 0; s < NEEDED; ++s) {
                const float value = (float)v[(SHIFT + s) / WIDTH].lane((SHIFT + s) % WIDTH);
#if POSITIONS
                if (value > largest[r][s]) row_of[r][s] = y - r * STRIDE;
#endif
                largest[r][s] = fmaxf(largest[r][s], value);  // NaN is ignored, by fmaxf as by >
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= P) break;
        Vector<T, COLUMNS> result;
#if POSITIONS
        Vector<unsigned char, COLUMNS> places;
#endif
#pragma unroll
        for (int g = 0; g < COLUMNS; ++g) {
            float value = largest[r][g * STRIDE];
#if POSITIONS
            int place = row_of[r][g * STRIDE] * WINDOW;
#pragma unroll
            for (int s = 1; s < WINDOW; ++s) {
                const float other = largest[r][g * STRIDE + s];
                const int at = row_of[r][g * STRIDE + s] * WINDOW + s;
                if (other > value || (other == value && at < place)) {
                    value = other;
                    place = at;
                }
            }
            places.lane(g) = (unsigned char)(value == lowest ? 255 : place);
#else
#pragma unroll
            for (int s = 1; s < WINDOW; ++s) value = fmaxf(value, largest[r][g * STRIDE + s]);
#endif
            result.lane(g) = (T)value;
        }
        const size_t target = ((size_t)plane * P + row + r) * Q + column;
        if (Q % COLUMNS == 0) {
            *reinterpret_cast<Vector<T, COLUMNS>*>(out + target) = result;
        } else {
#pragma unroll
            for (int g = 0; g < COLUMNS; ++g) {
                if (column + g < Q) out[target + g] = result.lane(g);
            }
        }
#if POSITIONS
        if (Q % COLUMNS == 0) {
            *reinterpret_cast<Vector<unsigned char, COLUMNS>*>(positions + target) = places;
        } else {
#pragma unroll
            for (int g = 0; g < COLUMNS; ++g) {
                if (column + g < Q) positions[target + g] = places.lane(g);
            }
        }
#endif
    }
}
