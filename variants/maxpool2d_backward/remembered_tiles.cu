// /// opbench
// title     = "a tile of ROWS x COLUMNS strides per thread: vectors of gradients, of places and of a row"
// builds_on = "remembered_gather"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes", "fewer_operations"]
// tune      = { COLUMNS = [2, 4, 1, 8], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "add", "mask"], search = ["remembered"] }
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
// kernel = "maxpool2d_backward_remembered_tiles"
// grid   = ["cdiv(n * c * cdiv(h, ROWS * stride) * cdiv(w, COLUMNS * stride), BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// At 2x2 windows that touch, a thread of COLUMNS = 2 reads a float2 of gradients and two places and writes two float4:
// the least that there is to move; with a gradient that is there already it reads two float4 of that. Tiles start at
// multiples of the stride, so that which window covers which pixel is known to the compiler, whatever the padding: a
// comparison with a constant for each. The vectors' width follows from what W and the tile divide by; rows of odd
// length fall back to scalars. Limit: HBM.

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

constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, TILE_COLUMNS);
constexpr bool GRADIENTS_IN_LINE = FIRST == 0 && WINDOW_COLUMNS == COLUMNS && Q % COLUMNS == 0;
constexpr int GRADIENT_WIDTH = GRADIENTS_IN_LINE ? widest_vector(BF16 ? 8 : 4, COLUMNS, COLUMNS) : 1;

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_backward_remembered_tiles(const unsigned char* __restrict__ positions, const T* __restrict__ dout,
#if ADD
                                        const T* __restrict__ skip,
#elif MASK
                                        const T* __restrict__ out,
#endif
                                        T* __restrict__ dx, int n, int c, int h, int w, int window, int stride,
                                        int padding) {
    // skip, dx: n C H W, positions, dout, out: n C P Q, all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * ROW_TILES * COLUMN_TILES)) return;
    const int tile_column = (int)(i % COLUMN_TILES), tile_row = (int)(i / COLUMN_TILES % ROW_TILES);
    const unsigned plane = i / COLUMN_TILES / ROW_TILES;
    const int top = tile_row * TILE_ROWS, left = tile_column * TILE_COLUMNS;

    float gradient[WINDOW_ROWS][WINDOW_COLUMNS];
    int place[WINDOW_ROWS][WINDOW_COLUMNS];
#pragma unroll
    for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
        for (int b = 0; b < WINDOW_COLUMNS; b += GRADIENT_WIDTH) {
            const int row = tile_row * ROWS + FIRST + a, column = tile_column * COLUMNS + FIRST + b;
            const size_t source = ((size_t)plane * P + row) * Q + column;
            const bool inside = (unsigned)row < P && (unsigned)column < Q;
            Vector<T, GRADIENT_WIDTH> v;
            Vector<unsigned char, GRADIENT_WIDTH> at;
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) {
                v.lane(lane) = (T)0.0f;
                at.lane(lane) = 255;
            }
            if (inside) {
                v = *reinterpret_cast<const Vector<T, GRADIENT_WIDTH>*>(dout + source);
                at = *reinterpret_cast<const Vector<unsigned char, GRADIENT_WIDTH>*>(positions + source);
            }
#if MASK
            Vector<T, GRADIENT_WIDTH> pooled = v;
            if (inside) pooled = *reinterpret_cast<const Vector<T, GRADIENT_WIDTH>*>(out + source);
#endif
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) {
                gradient[a][b + lane] = (float)v.lane(lane);
                place[a][b + lane] = at.lane(lane);
#if MASK
                if (!((float)pooled.lane(lane) > 0.0f)) gradient[a][b + lane] = 0.0f;
#endif
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
#endif
                result.lane(lane) = (T)sum;
            }
            *reinterpret_cast<Vector<T, WIDTH>*>(dx + target) = result;
        }
    }
}
