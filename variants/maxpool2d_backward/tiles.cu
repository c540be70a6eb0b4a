// /// opbench
// tune      = { COLUMNS = [2, 4, 1, 8], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
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
//
// [variant.tiles]
// title     = "a tile of ROWS x COLUMNS strides per thread: each window is searched once; vector accesses"
// builds_on = "window_constant"
// define    = { REMEMBERED = "0" }
//
// [variant.remembered_tiles]
// title     = "a tile of ROWS x COLUMNS strides per thread: vector loads of gradients and saved positions"
// builds_on = "remembered_gather"
// mechanism = ["fewer_operations"]
// supports  = { search = ["remembered"] }
// define    = { REMEMBERED = "1" }
// ///
//
// For 2x2 windows at stride 2, a thread with COLUMNS = 2 reads a float4 of two rows and a float2 of gradients, and
// writes two float4: no variant can move less. Overlapping windows (3x3 at stride 2) are searched once for the 2x2
// pixels of a stride; with more strides per thread, neighbouring strides share the windows between them. Tiles start at
// multiples of the stride, so the compiler knows which window covers which pixel, whatever the padding. The vector
// width is the largest that divides W and the tile; rows of odd length use scalars. Limit: HBM; at 3x3 and wider the
// comparisons. remembered_tiles reads the position of each maximum instead of the image: a float2 of gradients and two
// positions for two float4 that it writes, and one comparison with a constant for each window over a pixel.

#include <opbench/vectors.cuh>
#include <opbench/window_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef WindowTiles<ROWS, COLUMNS, STRIDE, WINDOW, PADDING, H, W> Tiles;

constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, W, Tiles::tile_columns);
#if !REMEMBERED
constexpr int START = floor_div(Tiles::before, WIDTH) * WIDTH;  // of the first vector, from the tile's begin
constexpr int VECTORS = (Tiles::before - START + Tiles::input_columns + WIDTH - 1) / WIDTH;
#endif
constexpr int GRADIENT_WIDTH = Tiles::gradient_width(BF16 ? 8 : 4, Q);

extern "C" __global__ void __launch_bounds__(BLOCK) maxpool2d_backward_tiles(
#if REMEMBERED
    const unsigned char* __restrict__ positions,
#else
    const T* __restrict__ x,
#endif
    const T* __restrict__ dout,
#if ADD
    const T* __restrict__ skip,
#elif MASK && REMEMBERED
    const T* __restrict__ out,
#endif
    T* __restrict__ dx, int n, int c, int h, int w, int window, int stride, int padding) {
    // x, skip, dx [n][C][H][W]; positions, dout, out [n][C][P][Q]; all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * Tiles::row_tiles * Tiles::column_tiles)) return;
    const int tile_column = (int)(i % Tiles::column_tiles);
    const int tile_row = (int)(i / Tiles::column_tiles % Tiles::row_tiles);
    const unsigned plane = i / Tiles::column_tiles / Tiles::row_tiles;
    const int top = tile_row * Tiles::tile_rows, left = tile_column * Tiles::tile_columns;

#if REMEMBERED
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
#else
    const T* image = x + (size_t)plane * (H * W);
    float gradient[Tiles::window_rows][Tiles::window_columns];
#pragma unroll
    for (int a = 0; a < Tiles::window_rows; ++a) {
#pragma unroll
        for (int b = 0; b < Tiles::window_columns; b += GRADIENT_WIDTH) {
            const int row = tile_row * ROWS + Tiles::first + a, column = tile_column * COLUMNS + Tiles::first + b;
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

    float largest[Tiles::window_rows][Tiles::window_columns];
    int place[Tiles::window_rows][Tiles::window_columns];
#pragma unroll
    for (int a = 0; a < Tiles::window_rows; ++a) {
#pragma unroll
        for (int b = 0; b < Tiles::window_columns; ++b) {
            largest[a][b] = __int_as_float(0xff800000);  // -infinity
            place[a][b] = -1;
        }
    }
#pragma unroll
    for (int y = 0; y < Tiles::input_rows; ++y) {
        Vector<T, WIDTH> v[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            // The vector is inside a row or outside of it, and never crosses its end.
            const int u = top + Tiles::before + y, z = left + START + k * WIDTH;
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) v[k].lane(lane) = (T)__int_as_float(0xff800000);
            if ((unsigned)u < H && (unsigned)z < W)
                v[k] = *reinterpret_cast<const Vector<T, WIDTH>*>(image + u * W + z);
        }
#pragma unroll
        for (int a = 0; a < Tiles::window_rows; ++a) {
            const int r = y - a * STRIDE;
            if (r < 0 || r >= WINDOW) continue;
#pragma unroll
            for (int b = 0; b < Tiles::window_columns; ++b) {
#pragma unroll
                for (int s = 0; s < WINDOW; ++s) {
                    const int at = Tiles::before - START + b * STRIDE + s;
                    const float value = (float)v[at / WIDTH].lane(at % WIDTH);
                    if (value > largest[a][b]) {
                        largest[a][b] = value;
                        place[a][b] = r * WINDOW + s;
                    }
                }
            }
        }
    }
#endif

#pragma unroll
    for (int y = 0; y < Tiles::tile_rows; ++y) {
        if (H % Tiles::tile_rows != 0 && top + y >= H) break;
#pragma unroll
        for (int k = 0; k < Tiles::tile_columns / WIDTH; ++k) {
            if (W % Tiles::tile_columns != 0 && left + k * WIDTH >= W) break;
            const size_t target = (size_t)plane * (H * W) + (top + y) * W + left + k * WIDTH;
#if ADD
            Vector<T, WIDTH> added = *reinterpret_cast<const Vector<T, WIDTH>*>(skip + target);
#elif MASK && !REMEMBERED
            Vector<T, WIDTH> own = *reinterpret_cast<const Vector<T, WIDTH>*>(x + target);  // again, from the cache
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
#elif MASK && !REMEMBERED
                if (!((float)own.lane(lane) > 0.0f)) sum = 0.0f;
#endif
                result.lane(lane) = (T)sum;
            }
            *reinterpret_cast<Vector<T, WIDTH>*>(dx + target) = result;
        }
    }
}
