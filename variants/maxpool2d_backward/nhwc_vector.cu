// /// opbench
// tune      = { COLUMNS = [1, 2], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// mechanism = ["coalesced", "vectorised_access", "compile_time_sizes"]
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], epilogue = ["none", "add", "mask"] }
// requires  = ["n * c * h * w <= 4294966272", "WINDOW_ROWS * WINDOW_COLUMNS * (c // packs) <= 72"]
//
// [define]
// BF16           = "dtype == 'bf16'"
// ADD            = "epilogue == 'add'"
// MASK           = "epilogue == 'mask'"
// WINDOW         = "window"
// STRIDE         = "stride"
// PADDING        = "padding"
// LANES          = "c // packs"
// PACKS          = "packs"
// H              = "h"
// W              = "w"
// P              = "p"
// Q              = "q"
// WINDOW_ROWS    = "(ROWS * stride - 1 + padding) // stride + (window - 1 - padding) // stride + 1"
// WINDOW_COLUMNS = "(COLUMNS * stride - 1 + padding) // stride + (window - 1 - padding) // stride + 1"
//
// [[launch]]
// kernel = "maxpool2d_backward_nhwc_vector"
// grid   = ["cdiv(n * cdiv(h, ROWS * stride) * cdiv(w, COLUMNS * stride) * packs, BLOCK)"]
// block  = ["BLOCK"]
//
// [variant.nhwc_vector]
// title     = "nhwc: 16-byte accesses along the channels, a tile of ROWS x COLUMNS strides per thread"
// builds_on = "window_constant"
// mechanism = ["register_tile"]
// requires  = ["c * h * w < 2 ** 31"]
// define    = { REMEMBERED = "0" }
//
// [variant.remembered_nhwc_vector]
// title     = "nhwc: 16-byte accesses along the channels; saved positions of maxima as vectors of 4 or 8 bytes"
// builds_on = "remembered_gather"
// mechanism = ["fewer_operations"]
// supports  = { search = ["remembered"] }
// define    = { REMEMBERED = "1" }
// ///
//
// A thread uses the widest vector of up to 16 bytes that divides the channels of a pixel. It searches each window that
// touches its tile once, for all pixels of the tile, in row order, and keeps the largest element and its position for
// each channel. With 2x2 windows at stride 2, a thread moves four vectors of the image, one of gradients and four of
// results, which is the minimum. WINDOW_ROWS x WINDOW_COLUMNS windows touch a tile; this bounds the registers. Limit:
// HBM; for windows of 3x3 and larger the comparisons.
//
// remembered_nhwc_vector reads the positions of the maxima instead of the image: one vector of gradients and its
// positions for four vectors that it writes, and one comparison with a constant for each window that contains a pixel.

#include <opbench/vectors.cuh>
#include <opbench/window_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef WindowTiles<ROWS, COLUMNS, STRIDE, WINDOW, PADDING, H, W> Tiles;

typedef Packed<T, LANES> Pack;
#if REMEMBERED
typedef Raw<LANES>::type Places;

__device__ __forceinline__ int place_of(const Places& places, int lane) {
    return reinterpret_cast<const unsigned char*>(&places)[lane];
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) maxpool2d_backward_nhwc_vector(
#if REMEMBERED
    const Places* __restrict__ positions,
#else
    const Pack* __restrict__ x,
#endif
    const Pack* __restrict__ dout,
#if ADD
    const Pack* __restrict__ skip,
#elif MASK && REMEMBERED
    const Pack* __restrict__ out,
#endif
    Pack* __restrict__ dx, int n, int c, int h, int w, int window, int stride, int padding) {
    // x, skip, dx [n][H][W][PACKS]; positions, dout, out [n][P][Q][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (Tiles::row_tiles * Tiles::column_tiles * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int tile_column = (int)(i / PACKS % Tiles::column_tiles);
    const int tile_row = (int)(i / PACKS / Tiles::column_tiles % Tiles::row_tiles);
    const unsigned number = i / PACKS / Tiles::column_tiles / Tiles::row_tiles;
    const int top = tile_row * Tiles::tile_rows, left = tile_column * Tiles::tile_columns;

    Pack gradient[WINDOW_ROWS][WINDOW_COLUMNS];
#if REMEMBERED
    Places places[WINDOW_ROWS][WINDOW_COLUMNS];
#pragma unroll
    for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
        for (int b = 0; b < WINDOW_COLUMNS; ++b) {
            const int row = tile_row * ROWS + Tiles::first + a, column = tile_column * COLUMNS + Tiles::first + b;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                reinterpret_cast<T*>(&gradient[a][b])[lane] = (T)0.0f;
                reinterpret_cast<unsigned char*>(&places[a][b])[lane] = 255;
            }
            if ((unsigned)row >= P || (unsigned)column >= Q) continue;
            const size_t source = (((size_t)number * P + row) * Q + column) * PACKS + pack;
            gradient[a][b] = dout[source];
            places[a][b] = positions[source];
#if MASK
            const Pack pooled = out[source];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                if (!(lane_of<T>(pooled, lane) > 0.0f)) reinterpret_cast<T*>(&gradient[a][b])[lane] = (T)0.0f;
            }
#endif
        }
    }
#else
    const Pack* image = x + (size_t)number * (H * W * PACKS) + pack;
    float largest[WINDOW_ROWS][WINDOW_COLUMNS][LANES];
    int place[WINDOW_ROWS][WINDOW_COLUMNS][LANES];
#pragma unroll
    for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
        for (int b = 0; b < WINDOW_COLUMNS; ++b) {
            const int row = tile_row * ROWS + Tiles::first + a, column = tile_column * COLUMNS + Tiles::first + b;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                reinterpret_cast<T*>(&gradient[a][b])[lane] = (T)0.0f;
                largest[a][b][lane] = __int_as_float(0xff800000);  // -infinity
                place[a][b][lane] = -1;
            }
            if ((unsigned)row < P && (unsigned)column < Q) {
                gradient[a][b] = dout[(((size_t)number * P + row) * Q + column) * PACKS + pack];
            }
        }
    }
#pragma unroll
    for (int y = 0; y < Tiles::input_rows; ++y) {
#pragma unroll
        for (int z = 0; z < Tiles::input_columns; ++z) {
            const int u = top + Tiles::before + y, v = left + Tiles::before + z;
            if ((unsigned)u >= H || (unsigned)v >= W) continue;
            const Pack values = image[(u * W + v) * PACKS];
#pragma unroll
            for (int a = 0; a < WINDOW_ROWS; ++a) {
#pragma unroll
                for (int b = 0; b < WINDOW_COLUMNS; ++b) {
                    const int r = y - a * STRIDE, s = z - b * STRIDE;
                    if (r < 0 || r >= WINDOW || s < 0 || s >= WINDOW) continue;
#pragma unroll
                    for (int lane = 0; lane < LANES; ++lane) {
                        const float value = lane_of<T>(values, lane);
                        if (value > largest[a][b][lane]) {
                            largest[a][b][lane] = value;
                            place[a][b][lane] = r * WINDOW + s;
                        }
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
        for (int z = 0; z < Tiles::tile_columns; ++z) {
            if (W % Tiles::tile_columns != 0 && left + z >= W) break;
            const size_t target = ((size_t)number * (H * W) + (top + y) * W + left + z) * PACKS + pack;
#if ADD
            const Pack added = skip[target];
#elif MASK && !REMEMBERED
            const Pack pixel = x[target];  // loaded again, from the cache
#endif
            Pack result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float sum = 0.0f;
                Tiles::for_each_window(y, z, [&](int a, int b, int r, int s) {
#if REMEMBERED
                    const int place_of_maximum = place_of(places[a][b], lane);
#else
                    const int place_of_maximum = place[a][b][lane];
#endif
                    if (place_of_maximum == r * WINDOW + s) sum += lane_of<T>(gradient[a][b], lane);
                });
#if ADD
                sum += lane_of<T>(added, lane);
#elif MASK && !REMEMBERED
                if (!(lane_of<T>(pixel, lane) > 0.0f)) sum = 0.0f;
#endif
                reinterpret_cast<T*>(&result)[lane] = (T)sum;
            }
            dx[target] = result;
        }
    }
}
