// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, ROWS x COLUMNS outputs per thread"
// builds_on = "nhwc_window_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes", "overlapped_launch"]
// tune      = { COLUMNS = [1, 2, 4], ROWS = [1, 2], BLOCK = [256, 128] }
// where     = ["ROWS <= COLUMNS"]
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"], positions = ["no", "yes"] }
// requires  = [
//   "n * p * q * c <= 4294966272",
//   "((ROWS - 1) * stride + window) * ((COLUMNS - 1) * stride + window) <= 90",
// ]
//
// [define]
// BF16      = "dtype == 'bf16'"
// POSITIONS = "positions == 'yes'"
// WINDOW    = "window"
// STRIDE    = "stride"
// PADDING   = "padding"
// C         = "c"
// H         = "h"
// W         = "w"
// P         = "p"
// Q         = "q"
//
// [[launch]]
// kernel = "maxpool2d_nhwc_vector"
// grid   = ["cdiv(n * cdiv(p, ROWS) * cdiv(q, COLUMNS) * packs, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "positions?", "n"]
// programmatic = true
// ///
//
// A thread loads the widest vector of up to 16 bytes that divides the channels of a pixel: 4 floats, or 8 bf16, of
// which one instruction compares two at a time. With 2x2 windows at stride 2, each thread has four such loads in
// flight, 64 KB per multiprocessor and more. With overlapping windows (3x3 at stride 2), neighbouring outputs of one
// thread share columns and rows: 15 loads for two outputs instead of 18, 25 for four instead of 36. The L1 and L2
// caches serve the other repeated loads. Positions are computed channel by channel and written as 4 or 8 bytes. Limit:
// HBM; for small images too few threads, and then one output per thread is fastest.

#include <opbench/vectors.cuh>
using namespace opbench;

#if BF16
#include <cuda_bf16.h>
#endif
#if BF16 && C % 2 == 0
typedef __nv_bfloat162 Cell;
__device__ __forceinline__ Cell larger(Cell a, Cell b) { return __hmax2(a, b); }
__device__ __forceinline__ Cell lowest() { return __float2bfloat162_rn(__int_as_float(0xff800000)); }
constexpr int CELLS = C / 2;  // pairs of channels of a pixel
#elif BF16
typedef __nv_bfloat16 Cell;
__device__ __forceinline__ Cell larger(Cell a, Cell b) { return __hmax(a, b); }
__device__ __forceinline__ Cell lowest() { return __float2bfloat16(__int_as_float(0xff800000)); }
constexpr int CELLS = C;
#else
typedef float Cell;
__device__ __forceinline__ Cell larger(Cell a, Cell b) { return fmaxf(a, b); }  // NaN is ignored
__device__ __forceinline__ Cell lowest() { return __int_as_float(0xff800000); }
constexpr int CELLS = C;
#endif
constexpr int WIDTH = CELLS % 4 == 0 ? 4 : CELLS % 2 == 0 ? 2 : 1;
constexpr int PACKS = CELLS / WIDTH;  // vectors of a pixel
constexpr int COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;
constexpr int ROW_GROUPS = (P + ROWS - 1) / ROWS;
constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE + WINDOW;
constexpr int INPUT_COLUMNS = (COLUMNS - 1) * STRIDE + WINDOW;
// All windows are inside of the image, also those of the last group.
constexpr bool INSIDE = PADDING == 0 && P % ROWS == 0 && Q % COLUMNS == 0;

typedef Packed<Cell, WIDTH> Pack;
constexpr int LANES = C / PACKS;  // channels of a vector
typedef Raw<LANES>::type Places;  // one position per channel

__device__ __forceinline__ Cell& cell(Pack& pack, int k) { return reinterpret_cast<Cell*>(&pack)[k]; }
#if BF16
__device__ __forceinline__ __nv_bfloat16& lane_of(Pack& pack, int k) {
    return reinterpret_cast<__nv_bfloat16*>(&pack)[k];
}
#else
__device__ __forceinline__ float& lane_of(Pack& pack, int k) { return cell(pack, k); }
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) maxpool2d_nhwc_vector(const Pack* x, Pack* __restrict__ out,
#if POSITIONS
                                                                          Places* __restrict__ positions,
#endif
                                                                          int n) {
    // x [n][H][W][PACKS]; out, positions [n][P][Q][PACKS]
#if __CUDA_ARCH__ >= 900  // blocks take their places as those of the launch ahead end
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (ROW_GROUPS * COLUMN_GROUPS * PACKS)) return;
    const unsigned pack = i % PACKS;
    const int column = (int)(i / PACKS % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / PACKS / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
    const unsigned image = i / PACKS / COLUMN_GROUPS / ROW_GROUPS;
    const int top = row * STRIDE - PADDING, left = column * STRIDE - PADDING;
    const Pack* source = x + (size_t)image * ((size_t)H * W * PACKS) + pack;

    Pack largest[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int k = 0; k < COLUMNS * WIDTH; ++k) cell(largest[r][k / WIDTH], k % WIDTH) = lowest();
    }
#if POSITIONS
    int place[ROWS][COLUMNS][LANES];
#pragma unroll
    for (int k = 0; k < ROWS * COLUMNS * LANES; ++k) place[k / LANES / COLUMNS][k / LANES % COLUMNS][k % LANES] = 255;
#endif
#pragma unroll
    for (int y = 0; y < INPUT_ROWS; ++y) {
#pragma unroll
        for (int z = 0; z < INPUT_COLUMNS; ++z) {
            Pack v;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) cell(v, k) = lowest();
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
#if POSITIONS
#pragma unroll
                    for (int k = 0; k < LANES; ++k) {
                        if ((float)lane_of(v, k) > (float)lane_of(largest[r][g], k)) {
                            lane_of(largest[r][g], k) = lane_of(v, k);
                            place[r][g][k] = (y - r * STRIDE) * WINDOW + z - g * STRIDE;
                        }
                    }
#else
#pragma unroll
                    for (int k = 0; k < WIDTH; ++k) cell(largest[r][g], k) = larger(cell(largest[r][g], k), cell(v, k));
#endif
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int g = 0; g < COLUMNS; ++g) {
            if (row + r >= P || column + g >= Q) continue;
            const size_t target = (((size_t)image * P + row + r) * Q + column + g) * PACKS + pack;
            out[target] = largest[r][g];
#if POSITIONS
            Places places;
#pragma unroll
            for (int k = 0; k < LANES; ++k) reinterpret_cast<unsigned char*>(&places)[k] = place[r][g][k];
            positions[target] = places;
#endif
        }
    }
}
