// /// opbench
// title     = "a tile of ROWS x COLUMNS strides per thread: each gradient is loaded once; vector stores along rows"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1, 8], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// supports  = { dtype = ["f32", "bf16"], divisor = ["window", "inside"] }
// requires  = [
//   "n * c * h * w <= 4294966272",
//   "ROWS * stride * COLUMNS * stride <= 64",
//   "(ROWS + cdiv(window, stride)) * (COLUMNS + cdiv(window, stride)) <= 64",
// ]
//
// [define]
// BF16    = "dtype == 'bf16'"
// INSIDE  = "divisor == 'inside'"
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
// kernel = "avgpool2d_backward_tiles"
// grid   = ["cdiv(n * c * cdiv(h, ROWS * stride) * cdiv(w, COLUMNS * stride), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// With 2x2 windows at stride 2 and COLUMNS = 2, a thread reads a float2 and writes two float4. Tiles start at multiples
// of the stride, so the compiler knows which window covers which pixel, whatever the padding is; the gradients of
// overlapping windows are shared in registers. Vectors are as wide as W and the tile allow; rows of odd length need
// scalar accesses. Limit: HBM; four fifths of the traffic are writes.

#include <opbench/vectors.cuh>
#include <opbench/window_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef WindowTiles<ROWS, COLUMNS, STRIDE, WINDOW, PADDING, H, W> Tiles;

constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, Tiles::tile_columns);
constexpr int GRADIENT_WIDTH = Tiles::gradient_width(BF16 ? 8 : 4, Q);

// Return how many positions of a window count along one axis.
__device__ __forceinline__ int positions(int window, int size) {
#if INSIDE && PADDING > 0
    const int first = window * STRIDE - PADDING;
    return min(first + WINDOW, size) - max(first, 0);
#else
    return WINDOW;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool2d_backward_tiles(const T* __restrict__ dout, T* __restrict__ dx, int n) {
    // dout [n][C][P][Q], dx [n][C][H][W], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * Tiles::row_tiles * Tiles::column_tiles)) return;
    const int tile_column = (int)(i % Tiles::column_tiles);
    const int tile_row = (int)(i / Tiles::column_tiles % Tiles::row_tiles);
    const unsigned plane = i / Tiles::column_tiles / Tiles::row_tiles;
    const int top = tile_row * Tiles::tile_rows, left = tile_column * Tiles::tile_columns;

    float share[Tiles::window_rows][Tiles::window_columns];
#pragma unroll
    for (int a = 0; a < Tiles::window_rows; ++a) {
#pragma unroll
        for (int b = 0; b < Tiles::window_columns; b += GRADIENT_WIDTH) {
            const int row = tile_row * ROWS + Tiles::first + a, column = tile_column * COLUMNS + Tiles::first + b;
            Vector<T, GRADIENT_WIDTH> v;
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) v.lane(lane) = (T)0.0f;
            const bool inside = (unsigned)row < P && (unsigned)column < Q;
            if (inside) {
                v = *reinterpret_cast<const Vector<T, GRADIENT_WIDTH>*>(dout + ((size_t)plane * P + row) * Q + column);
            }
#pragma unroll
            for (int lane = 0; lane < GRADIENT_WIDTH; ++lane) {
                const int divisor = inside ? positions(row, H) * positions(column + lane, W) : 1;
                share[a][b + lane] = (float)v.lane(lane) / (float)divisor;
            }
        }
    }
#pragma unroll
    for (int y = 0; y < Tiles::tile_rows; ++y) {
        if (H % Tiles::tile_rows != 0 && top + y >= H) break;
#pragma unroll
        for (int k = 0; k < Tiles::tile_columns / WIDTH; ++k) {
            if (W % Tiles::tile_columns != 0 && left + k * WIDTH >= W) break;
            Vector<T, WIDTH> result;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {
                float sum = 0.0f;
                Tiles::for_each_window(y, k * WIDTH + lane, [&](int a, int b, int, int) { sum += share[a][b]; });
                result.lane(lane) = (T)sum;
            }
            const size_t target = (size_t)plane * (H * W) + (top + y) * W + left + k * WIDTH;
            *reinterpret_cast<Vector<T, WIDTH>*>(dx + target) = result;
        }
    }
}
