// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, ROWS x COLUMNS outputs per thread"
// builds_on = "nhwc_flat_divmod"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [1, 2, 4], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// supports  = { divisor = ["window", "inside"], layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = [
//   "n * p * q * c <= 4294966272",
//   "((ROWS - 1) * stride + window) * ((COLUMNS - 1) * stride + window) <= 90",
// ]
//
// [define]
// BF16    = "dtype == 'bf16'"
// COUNTED = "divisor == 'inside' and padding > 0"
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
// kernel = "avgpool2d_nhwc_vector"
// grid   = ["cdiv(n * cdiv(p, ROWS) * cdiv(q, COLUMNS) * packs, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n"]
// ///
//
// A thread loads the widest vector of up to 16 bytes that divides the channels of a pixel: 4 floats or 8 bf16, added up
// in float. With 2x2 windows at stride 2, each thread has four such loads in flight, 64 KB per multiprocessor and more.
// With overlapping windows (3x3 at stride 2), neighbouring outputs of one thread share columns and rows: 15 loads for
// two outputs instead of 18, 25 for four instead of 36. The L1 and L2 caches serve the other repeated loads. Limit:
// HBM; for small images too few threads, and then one output per thread is fastest.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int LANES = 16 / sizeof(T);
constexpr int WIDTH = C % LANES == 0 ? LANES : C % 4 == 0 ? 4 : C % 2 == 0 ? 2 : 1;
constexpr int PACKS = C / WIDTH;  // vectors of a pixel
constexpr int COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;
constexpr int ROW_GROUPS = (P + ROWS - 1) / ROWS;
constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE + WINDOW;
constexpr int INPUT_COLUMNS = (COLUMNS - 1) * STRIDE + WINDOW;
// All windows are inside of the image, also those of the last group.
constexpr bool INSIDE = PADDING == 0 && P % ROWS == 0 && Q % COLUMNS == 0;

typedef Packed<T, WIDTH> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool2d_nhwc_vector(const Pack* __restrict__ x, Pack* __restrict__ out, int n) {
    // x [n][H][W][PACKS]; out [n][P][Q][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (ROW_GROUPS * COLUMN_GROUPS * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int column = (int)(i / PACKS % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / PACKS / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
    const unsigned image = i / PACKS / COLUMN_GROUPS / ROW_GROUPS;
    const int top = row * STRIDE - PADDING, left = column * STRIDE - PADDING;
    const Pack* source = x + (size_t)image * ((size_t)H * W * PACKS) + pack;

    float sum[ROWS][COLUMNS][WIDTH];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int k = 0; k < COLUMNS * WIDTH; ++k) sum[r][k / WIDTH][k % WIDTH] = 0.0f;
    }
#pragma unroll
    for (int y = 0; y < INPUT_ROWS; ++y) {
#pragma unroll
        for (int z = 0; z < INPUT_COLUMNS; ++z) {
            Pack v;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) reinterpret_cast<T*>(&v)[k] = (T)0.0f;
            if (INSIDE || ((unsigned)(top + y) < H && (unsigned)(left + z) < W)) {
                v = source[((ptrdiff_t)(top + y) * W + (left + z)) * PACKS];
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int g = 0; g < COLUMNS; ++g) {
                    const bool covered =
                        y >= r * STRIDE && y < r * STRIDE + WINDOW && z >= g * STRIDE && z < g * STRIDE + WINDOW;
                    if (!covered) continue;
#pragma unroll
                    for (int k = 0; k < WIDTH; ++k) sum[r][g][k] += (float)reinterpret_cast<const T*>(&v)[k];
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int g = 0; g < COLUMNS; ++g) {
            if (row + r >= P || column + g >= Q) continue;
#if COUNTED
            const int y = top + r * STRIDE, z = left + g * STRIDE;
            const int height = min(y + WINDOW, H) - max(y, 0), width = min(z + WINDOW, W) - max(z, 0);
            const float factor = 1.0f / (height * width);
#else
            const float factor = 1.0f / (WINDOW * WINDOW);
#endif
            Pack result;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) reinterpret_cast<T*>(&result)[k] = (T)(sum[r][g][k] * factor);
            out[(((size_t)image * P + row + r) * Q + column + g) * PACKS + pack] = result;
        }
    }
}
