// /// opbench
// title     = "a tile of ROWS x COLUMNS strides per thread: each window over it searched once; vectors of a row"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1, 8], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "add", "mask"] }
// requires  = [
//   "n * c * h * w <= 4294966272",
//   "(ROWS * stride + window) * (COLUMNS * stride + window) <= 128",
// ]
//
// [define]
// BF16    = "dtype == 'bf16'"
// ADD     = "epilogue == 'add'"
// MASK    = "epilogue == 'mask'"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
// C       = "c"
// H       = "h"
// W       = "w"
// P       = "p"
// Q       = "q"
//
// [[launch]]
// kernel = "maxpool2d_backward_tiles"
// grid   = ["cdiv(n * c * cdiv(h, ROWS * stride) * cdiv(w, COLUMNS * stride), BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// At 2x2 windows that touch, a thread of COLUMNS = 2 reads a float4 of two rows and a float2 of gradients and writes
// two float4: the least that there is to move. Overlapping windows (3x3 at stride 2) are searched once for the 2x2
// pixels of a stride, and more strides share what lies between them; tiles start at multiples of the stride, so that
// which window covers which pixel is known to the compiler, whatever the padding. The vectors' width follows from what
// W and the tile divide by; rows of odd length fall back to scalars. Limit: HBM; at 3x3 and wider the comparisons.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int TILE_ROWS = ROWS * STRIDE, TILE_COLUMNS = COLUMNS * STRIDE;
constexpr int ROW_TILES = (H + TILE_ROWS - 1) / TILE_ROWS, COLUMN_TILES = (W + TILE_COLUMNS - 1) / TILE_COLUMNS;
constexpr int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
// Windows over a tile, counted from the one that starts (padding apart) where the tile does.
constexpr int FIRST = -floor_div(WINDOW - 1 - PADDING, STRIDE);
constexpr int WINDOW_ROWS = (TILE_ROWS - 1 + PADDING) / STRIDE - FIRST + 1;
constexpr int WINDOW_COLUMNS = (TILE_COLUMNS - 1 + PADDING) / STRIDE - FIRST + 1;
constexpr int BEFORE = FIRST * STRIDE - PADDING;  // where the first begins, from the tile's own begin
constexpr int INPUT_ROWS = (WINDOW_ROWS - 1) * STRIDE + WINDOW, INPUT_COLUMNS = (WINDOW_COLUMNS - 1) * STRIDE + WINDOW;

constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, TILE_COLUMNS);
constexpr int START = floor_div(BEFORE, WIDTH) * WIDTH;  // of the first vector, from the tile's begin
constexpr int VECTORS = (BEFORE - START + INPUT_COLUMNS + WIDTH - 1) / WIDTH;
constexpr bool GRADIENTS_IN_LINE = FIRST == 0 && WINDOW_COLUMNS == COLUMNS && Q % COLUMNS == 0;
constexpr int GRADIENT_WIDTH = GRADIENTS_IN_LINE ? widest_vector(BF16 ? 8 : 4, COLUMNS, COLUMNS) : 1;

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_backward_tiles(const T* __restrict__ x, const T* __restrict__ dout,
#if ADD
                             const T* __restrict__ skip,
#endif
                             T* __restrict__ dx, int n, int c, int h, int w, int window, int stride, int padding) {
    // x, skip, dx: n C H W, dout: n C P Q, all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * ROW_TILES * COLUMN_TILES)) return;
    const int tile_column = (int)(i % COLUMN_TILES), tile_row = (int)(i / COLUMN_TILES % ROW_TILES);
    const unsigned plane = i / COLUMN_TILES / ROW_TILES;
    const int top = tile_row * TILE_ROWS, left = tile_column * TILE_COLUMNS;
    const T* image = x + (size_t)plane * (H * W);

    float gradient[WINDOW_ROWS][WINDOW_COLUMNS];
#pragma unroll
    for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
        for (int b = 0; b < WINDOW_COLUMNS; b += GRADIENT_WIDTH) {
            const int row = tile_row * ROWS + FIRST + a, column = tile_column * COLUMNS + FIRST + b;
            Vector<T, GRADIENT_WIDTH> v;
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) v.lane(lane) = (T)0.0f;
            if ((unsigned)row < P && (unsigned)column < Q) {
                v = *reinterpret_cast<const Vector<T, GRADIENT_WIDTH>*>(dout + ((size_t)plane * P + row) * Q + column);
            }
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) gradient[a][b + lane] = (float)v.lane(lane);
        }
    }

    float largest[WINDOW_ROWS][WINDOW_COLUMNS];
    int place[WINDOW_ROWS][WINDOW_COLUMNS];
#pragma unroll
    for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
        for (int b = 0; b < WINDOW_COLUMNS; ++b) {
            largest[a][b] = __int_as_float(0xff800000);  // -infinity
            place[a][b] = -1;
        }
    }
#pragma unroll
    for (int y = 0; y < INPUT_ROWS; ++y) {
        Vector<T, WIDTH> v[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            const int u = top + BEFORE + y, z = left + START + k * WIDTH;  // inside a row or outside it, never across
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) v[k].lane(lane) = (T)__int_as_float(0xff800000);
            if ((unsigned)u < H && (unsigned)z < W)
                v[k] = *reinterpret_cast<const Vector<T, WIDTH>*>(image + u * W + z);
        }
#pragma unroll
        for (int a = 0; a < WINDOW_ROWS; ++a) {
            const int r = y - a * STRIDE;
            if (r < 0 || r >= WINDOW) continue;
#pragma unroll
            for (int b = 0; b < WINDOW_COLUMNS; ++b) {
#pragma unroll
                for (int s = 0; s < WINDOW; ++s) {
                    const int at = BEFORE - START + b * STRIDE + s;
                    const float value = (float)v[at / WIDTH].lane(at % WIDTH);
                    if (value > largest[a][b]) {
                        largest[a][b] = value;
                        place[a][b] = r * WINDOW + s;
                    }
                }
            }
        }
    }

#pragma unroll
    for (int y = 0; y < TILE_ROWS; ++y) {
        if (H % TILE_ROWS != 0 && top + y >= H) break;
#pragma unroll
        for (int k = 0; k < TILE_COLUMNS / WIDTH; ++k) {
            if (W % TILE_COLUMNS != 0 && left + k * WIDTH >= W) break;
            const size_t target = (size_t)plane * (H * W) + (top + y) * W + left + k * WIDTH;
#if ADD
            Vector<T, WIDTH> added = *reinterpret_cast<const Vector<T, WIDTH>*>(skip + target);
#elif MASK
            Vector<T, WIDTH> own = *reinterpret_cast<const Vector<T, WIDTH>*>(x + target);  // again, from the cache
#endif
            Vector<T, WIDTH> result;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {
                float sum = 0.0f;
#pragma unroll
                for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
                    for (int b = 0; b < WINDOW_COLUMNS; ++b) {
                        const int r = y - BEFORE - a * STRIDE, s = k * WIDTH + lane - BEFORE - b * STRIDE;
                        if (r < 0 || r >= WINDOW || s < 0 || s >= WINDOW) continue;
                        if (place[a][b] == r * WINDOW + s) sum += gradient[a][b];
                    }
                }
#if ADD
                sum += (float)added.lane(lane);
#elif MASK
                if (!((float)own.lane(lane) > 0.0f)) sum = 0.0f;
#endif
                result.lane(lane) = (T)sum;
            }
            *reinterpret_cast<Vector<T, WIDTH>*>(dx + target) = result;
        }
    }
}
