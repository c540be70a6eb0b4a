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
#include <opbench/window_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef WindowTiles<ROWS, COLUMNS, STRIDE, WINDOW, PADDING, H, W> Tiles;

constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, Tiles::tile_columns);
constexpr int GRADIENT_WIDTH = Tiles::gradient_width(BF16 ? 8 : 4, Q);

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_backward_remembered_tiles(const unsigned char* __restrict__ positions, const T* __restrict__ dout,
#if ADD
                                        const T* __restrict__ skip,
#elif MASK
                                        const T* __restrict__ out,
#endif
                                        T* __restrict__ dx, int n, int c, int h, int w, int window, int stride,
                                        int padding) {
    // skip, dx [n][C][H][W], positions, dout, out [n][C][P][Q], all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * Tiles::row_tiles * Tiles::column_tiles)) return;
    const int tile_column = (int)(i % Tiles::column_tiles);
    const int tile_row = (int)(i / Tiles::column_tiles % Tiles::row_tiles);
    const unsigned plane = i / Tiles::column_tiles / Tiles::row_tiles;
    const int top = tile_row * Tiles::tile_rows, left = tile_column * Tiles::tile_columns;

    float gradient[Tiles::window_rows][Tiles::window_columns];
    int place[Tiles::window_rows][Tiles::window_columns];
#pragma unroll
    for (int a = 0; a < Tiles::window_rows; ++a) {
#pragma unroll
        for (int b = 0; b < Tiles::window_columns; b += GRADIENT_WIDTH) {
            const int row = tile_row * ROWS + Tiles::first + a, column = tile_column * COLUMNS + Tiles::first + b;
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
    for (int y = 0; y < Tiles::tile_rows; ++y) {
        if (H % Tiles::tile_rows != 0 && top + y >= H) break;
#pragma unroll
        for (int k = 0; k < Tiles::tile_columns / WIDTH; ++k) {
            if (W % Tiles::tile_columns != 0 && left + k * WIDTH >= W) break;
            const size_t target = (size_t)plane * (H * W) + (top + y) * W + left + k * WIDTH;
#if ADD
            Vector<T, WIDTH> added = *reinterpret_cast<const Vector<T, WIDTH>*>(skip + target);
#endif
            Vector<T, WIDTH> result;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {
                float sum = 0.0f;
                Tiles::for_each_window(y, k * WIDTH + lane, [&](int a, int b, int r, int s) {
                    if (place[a][b] == r * WINDOW + s) sum += gradient[a][b];
                });
#if ADD
                sum += (float)added.lane(lane);
#endif
                result.lane(lane) = (T)sum;
            }
            *reinterpret_cast<Vector<T, WIDTH>*>(dx + target) = result;
        }
    }
}
