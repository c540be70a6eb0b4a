// /// opbench
// title     = "nhwc: 16 bytes of channels per access, the places of their maxima as 4 or 8 bytes"
// builds_on = "remembered_gather"
// mechanism = ["coalesced", "vectorised_access", "compile_time_sizes", "fewer_operations"]
// tune      = { COLUMNS = [1, 2], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// requires  = ["n * c * h * w <= 4294966272", "WINDOW_ROWS * WINDOW_COLUMNS * (c // packs) <= 72"]
//
// [supports]
// layout   = ["nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "add", "mask"]
// search   = ["remembered"]
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
// kernel = "maxpool2d_backward_remembered_nhwc_vector"
// grid   = ["cdiv(n * cdiv(h, ROWS * stride) * cdiv(w, COLUMNS * stride) * packs, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// A lane takes the widest vector of up to 16 bytes that divides a pixel's channels, for a tile of ROWS x COLUMNS
// strides. At 2x2 windows that touch, a thread reads one vector of gradients and its places and writes four vectors:
// the least that there is; with a gradient that is there already (UNet's way down) it reads four of those. All sizes
// are known to the compiler, so that which window may have its maximum in which pixel is, too: a comparison with a
// constant for each. WINDOW_ROWS x WINDOW_COLUMNS windows are over a tile, which bounds the registers. Limit: HBM.

#include <opbench/vectors.cuh>
#include <opbench/window_tiles.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef WindowTiles<ROWS, COLUMNS, STRIDE, WINDOW, PADDING, H, W> Tiles;

typedef Packed<T, LANES> Pack;
typedef Raw<LANES>::type Places;

__device__ __forceinline__ int place_of(const Places& places, int lane) {
    return reinterpret_cast<const unsigned char*>(&places)[lane];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    maxpool2d_backward_remembered_nhwc_vector(const Places* __restrict__ positions, const Pack* __restrict__ dout,
#if ADD
                                              const Pack* __restrict__ skip,
#elif MASK
                                              const Pack* __restrict__ out,
#endif
                                              Pack* __restrict__ dx, int n, int c, int h, int w, int window, int stride,
                                              int padding) {
    // skip, dx [n][H][W][PACKS]; positions, dout, out [n][P][Q][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (Tiles::row_tiles * Tiles::column_tiles * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int tile_column = (int)(i / PACKS % Tiles::column_tiles);
    const int tile_row = (int)(i / PACKS / Tiles::column_tiles % Tiles::row_tiles);
    const unsigned number = i / PACKS / Tiles::column_tiles / Tiles::row_tiles;
    const int top = tile_row * Tiles::tile_rows, left = tile_column * Tiles::tile_columns;

    Pack gradient[WINDOW_ROWS][WINDOW_COLUMNS];
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
#pragma unroll
    for (int y = 0; y < Tiles::tile_rows; ++y) {
        if (H % Tiles::tile_rows != 0 && top + y >= H) break;
#pragma unroll
        for (int z = 0; z < Tiles::tile_columns; ++z) {
            if (W % Tiles::tile_columns != 0 && left + z >= W) break;
            const size_t target = ((size_t)number * (H * W) + (top + y) * W + left + z) * PACKS + pack;
#if ADD
            const Pack added = skip[target];
#endif
            Pack result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float sum = 0.0f;
                Tiles::for_each_window(y, z, [&](int a, int b, int r, int s) {
                    if (place_of(places[a][b], lane) == r * WINDOW + s) sum += lane_of<T>(gradient[a][b], lane);
                });
#if ADD
                sum += lane_of<T>(added, lane);
#endif
                reinterpret_cast<T*>(&result)[lane] = (T)sum;
            }
            dx[target] = result;
        }
    }
}
