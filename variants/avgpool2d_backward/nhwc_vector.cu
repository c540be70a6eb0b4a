// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, a tile of stride x stride pixels per thread"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], divisor = ["window", "inside"] }
// requires  = ["n * c * h * w <= 4294966272", "cdiv(window, stride) <= 3", "stride <= 8"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// INSIDE  = "divisor == 'inside'"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
// LANES   = "c // packs"
// BYTES   = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK    = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// PACKS   = "packs"
// H       = "h"
// W       = "w"
// P       = "p"
// Q       = "q"
//
// [[launch]]
// kernel = "avgpool2d_backward_nhwc_vector"
// grid   = ["cdiv(n * cdiv(h, stride) * cdiv(w, stride) * packs, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// A thread uses the widest vector of up to 16 bytes that divides the channels of a pixel, and computes a tile of STRIDE
// x STRIDE pixels. With 2x2 windows at stride 2 this is one load, one division and four stores. Limit: HBM; four fifths
// of the traffic are writes.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int ROW_TILES = (H + STRIDE - 1) / STRIDE, COLUMN_TILES = (W + STRIDE - 1) / STRIDE;
// Windows that cover a tile, counted from the one that starts (apart from the padding) where the tile starts.
constexpr int FIRST = WINDOW - 1 >= PADDING ? -((WINDOW - 1 - PADDING) / STRIDE) : 1;
constexpr int OVER = (STRIDE - 1 + PADDING) / STRIDE - FIRST + 1;
constexpr int BEFORE = FIRST * STRIDE - PADDING;  // start of the first window, relative to the tile's start
typedef PACK Pack;                                // the vector of one load or store

__device__ __forceinline__ float lane_of(const Pack& pack, int lane) {
    return (float)reinterpret_cast<const T*>(&pack)[lane];
}

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
    avgpool2d_backward_nhwc_vector(const Pack* __restrict__ dout, Pack* __restrict__ dx, int n) {
    // dout [n][P][Q][PACKS]; dx [n][H][W][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (ROW_TILES * COLUMN_TILES * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int tile_column = (int)(i / PACKS % COLUMN_TILES), tile_row = (int)(i / PACKS / COLUMN_TILES % ROW_TILES);
    const unsigned image = i / PACKS / COLUMN_TILES / ROW_TILES;

    float share[OVER][OVER][LANES];
#pragma unroll
    for (int a = 0; a < OVER; ++a) {
#pragma unroll
        for (int b = 0; b < OVER; ++b) {
            const int row = tile_row + FIRST + a, column = tile_column + FIRST + b;
            const bool inside = (unsigned)row < P && (unsigned)column < Q;
            Pack gradient;
            if (inside) gradient = dout[(((size_t)image * P + row) * Q + column) * PACKS + pack];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                share[a][b][lane] =
                    inside ? lane_of(gradient, lane) / (float)(positions(row, H) * positions(column, W)) : 0.0f;
            }
        }
    }
#pragma unroll
    for (int y = 0; y < STRIDE; ++y) {
        const int row = tile_row * STRIDE + y;
        if (H % STRIDE != 0 && row >= H) break;
#pragma unroll
        for (int z = 0; z < STRIDE; ++z) {
            const int column = tile_column * STRIDE + z;
            if (W % STRIDE != 0 && column >= W) break;
            Pack result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                float sum = 0.0f;
#pragma unroll
                for (int a = 0; a < OVER; ++a) {
#pragma unroll
                    for (int b = 0; b < OVER; ++b) {
                        const int r = y - BEFORE - a * STRIDE, s = z - BEFORE - b * STRIDE;
                        if (r >= 0 && r < WINDOW && s >= 0 && s < WINDOW) sum += share[a][b][lane];
                    }
                }
                reinterpret_cast<T*>(&result)[lane] = (T)sum;
            }
            dx[(((size_t)image * H + row) * W + column) * PACKS + pack] = result;
        }
    }
}
