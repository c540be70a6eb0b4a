// /// opbench
// title     = "ROWS x COLUMNS outputs per thread from vector loads; all sizes are compile-time constants"
// builds_on = "window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1], ROWS = [1, 2, 4], BLOCK = [256, 128] }
// where     = ["ROWS * COLUMNS <= 8"]
// supports  = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
// requires  = [
//   "n * c * p * q <= 4294966272",
//   "window <= 16",
//   "ROWS * ((COLUMNS - 1) * stride + window) <= 96",
// ]
//
// [define]
// BF16    = "dtype == 'bf16'"
// INSIDE  = "divisor == 'inside' and padding > 0"
// WINDOW  = "window"
// STRIDE  = "stride"
// PADDING = "padding"
// H       = "h"
// W       = "w"
// P       = "p"
// Q       = "q"
//
// [[launch]]
// kernel = "avgpool2d_multi_output"
// grid   = ["cdiv(n * c * cdiv(p, ROWS) * cdiv(q, COLUMNS), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// With 2x2 windows at stride 2 and COLUMNS = 2, a thread reads one float4 of each row and writes one float2: each
// instruction uses whole sectors, and a full multiprocessor has 64 KB in flight per row of outputs. Overlapping windows
// (3x3 at stride 2) share their columns in registers; with ROWS > 1 they share input rows as well, which saves L2
// traffic. The sizes are macros, so divisions become multiplications, and bounds checks that can never fail cost
// nothing. Vectors are as wide as W and COLUMNS * STRIDE allow; rows of odd length need scalar loads. Limit: HBM. In
// bf16, COLUMNS = 4 moves as many bytes per thread as COLUMNS = 2 in float32.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;
constexpr int ROW_GROUPS = (P + ROWS - 1) / ROWS;
constexpr int NEEDED = (COLUMNS - 1) * STRIDE + WINDOW;  // input columns that a thread's outputs depend on
constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE + WINDOW;
constexpr bool step_and_row_divide_by(int width) { return W % width == 0 && COLUMNS * STRIDE % width == 0; }
constexpr int WIDTH = BF16 && step_and_row_divide_by(8) ? 8
                      : step_and_row_divide_by(4)       ? 4
                      : step_and_row_divide_by(2)       ? 2
                                                        : 1;
constexpr int SHIFT = (WIDTH - PADDING % WIDTH) % WIDTH;  // extra columns to the left, so that vectors are aligned
constexpr int VECTORS = (SHIFT + NEEDED + WIDTH - 1) / WIDTH;
constexpr bool COLUMNS_INSIDE = PADDING == 0 && (COLUMN_GROUPS - 1) * COLUMNS * STRIDE + VECTORS * WIDTH <= W;
constexpr bool ROWS_INSIDE = PADDING == 0 && (ROW_GROUPS - 1) * ROWS * STRIDE + INPUT_ROWS <= H;

// A type that is copied as a whole; a structure of __nv_bfloat16 would be copied member by member.
template <int BYTES>
struct Raw;
template <>
struct Raw<16> {
    typedef uint4 type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<4> {
    typedef unsigned type;
};
template <>
struct Raw<2> {
    typedef unsigned short type;
};
template <int N>
struct Vector {
    typename Raw<sizeof(T) * N>::type raw;
    __device__ __forceinline__ T& lane(int i) { return reinterpret_cast<T*>(&raw)[i]; }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    avgpool2d_multi_output(const T* __restrict__ x, T* __restrict__ out, int planes) {
    // x [planes][H][W], out [planes][P][Q], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (ROW_GROUPS * COLUMN_GROUPS)) return;
    const int column = (int)(i % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
    const unsigned plane = i / COLUMN_GROUPS / ROW_GROUPS;
    const int top = row * STRIDE - PADDING;
    const int left = column * STRIDE - PADDING - SHIFT;  // a multiple of WIDTH
    const T* image = x + (size_t)plane * ((size_t)H * W);

    float sum[ROWS][NEEDED];  // for each input column, the sum over the rows of each output's window
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int s = 0; s < NEEDED; ++s) sum[r][s] = 0.0f;
    }
#pragma unroll
    for (int y = 0; y < INPUT_ROWS; ++y) {
        Vector<WIDTH> v[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            const int z = left + k * WIDTH;  // a vector is inside the row or outside, never across its end
            const bool inside = (ROWS_INSIDE || (unsigned)(top + y) < H) && (COLUMNS_INSIDE || (unsigned)z < W);
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) v[k].lane(lane) = (T)0.0f;
            if (inside) v[k] = *reinterpret_cast<const Vector<WIDTH>*>(image + (ptrdiff_t)(top + y) * W + z);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (y < r * STRIDE || y >= r * STRIDE + WINDOW) continue;
#pragma unroll
            for (int s = 0; s < NEEDED; ++s) {
                sum[r][s] += (float)v[(SHIFT + s) / WIDTH].lane((SHIFT + s) % WIDTH);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (row + r >= P) break;
        Vector<COLUMNS> result;
#pragma unroll
        for (int g = 0; g < COLUMNS; ++g) {
            float value = sum[r][g * STRIDE];
#pragma unroll
            for (int s = 1; s < WINDOW; ++s) value += sum[r][g * STRIDE + s];
#if INSIDE
            const int y = (row + r) * STRIDE - PADDING, z = (column + g) * STRIDE - PADDING;
            const int height = min(y + WINDOW, H) - max(y, 0), width = min(z + WINDOW, W) - max(z, 0);
            result.lane(g) = (T)(value / (height * width));
#else
            result.lane(g) = (T)(value * (1.0f / (WINDOW * WINDOW)));
#endif
        }
        T* target = out + ((size_t)plane * P + row + r) * Q + column;
        if (Q % COLUMNS == 0) {
            *reinterpret_cast<Vector<COLUMNS>*>(target) = result;
        } else {
#pragma unroll
            for (int g = 0; g < COLUMNS; ++g) {
                if (column + g < Q) target[g] = result.lane(g);
            }
        }
    }
}
