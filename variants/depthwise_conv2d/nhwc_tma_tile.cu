// /// opbench
// title     = "TMA copies all rows of a tile at once; each thread computes columns of outputs in registers"
// builds_on = "nhwc_columns"
// mechanism = [
//     "coalesced", "compile_time_sizes", "register_tile", "shared_memory_tile", "async_copy", "tma",
//     "overlapped_launch",
// ]
// where     = [
//     """(BYTES, TQ, PIXELS, GROUPS, DOWN) in (
//         (256, 28, 7, 2, 14), (128, 56, 7, 4, 7), (128, 28, 7, 2, 14), (64, 56, 7, 4, 14), (64, 56, 7, 2, 7),
//         (64, 28, 4, 2, 14), (64, 14, 7, 2, 7), (48, 56, 7, 2, 7), (96, 14, 7, 2, 7), (256, 7, 7, 1, 7),
//     )""",
// ]
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish"]
// supports.dtype    = ["f32", "bf16"]
// requires  = [
//     "c % (8 if dtype == 'bf16' else 4) == 0", "n * c * p * q < 2 ** 31", "r * s <= 25",
//     "SPAN <= 24 and PIXELS * AGES <= 28", "IN_W <= 256 and CHANNELS <= 256", "SHARED <= 227 * 1024",
//     "32 <= THREADS and THREADS <= 512",
// ]
// compute_capability = "9.0"
//
// [tune]
// BYTES = [256, 128, 64, 48, 96]
// TQ = [28, 56, 14, 7]
// PIXELS = [7, 4]
// GROUPS = [2, 4, 1]
// DOWN = [14, 7]
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "epilogue != 'none'"
// EPILOGUE = "epilogue"
// C = "c"
// P = "p"
// Q = "q"
// R = "r"
// S = "s"
// STRIDE = "stride"
// PADDING = "padding"
// DILATION = "dilation"
// SPAN = "(PIXELS - 1) * stride + (s - 1) * dilation + 1"
// AGES = "(r - 1) * dilation // stride + 1"
// CHANNELS = "BYTES // (2 if dtype == 'bf16' else 4)"
// THREADS = "CHANNELS // 2 * (TQ // PIXELS) * GROUPS"
// IN_H = "(GROUPS * DOWN - 1) * stride + (r - 1) * dilation + 1"
// IN_W = "(TQ - 1) * stride + (s - 1) * dilation + 1"
// PITCH = "cdiv(IN_W * BYTES, 128) * 128"
// SHARED = "IN_H * (PITCH + 8)"
// BLOCKS = "max(1, min(233472 // (SHARED + 1024), 16 // cdiv(THREADS, 32)))"
//
// [tensor_maps]
// pixels = { tensor = "image", box = ["CHANNELS", "IN_W", 1, 1], swizzle = "none" }
//
// [[launch]]
// kernel = "depthwise_nhwc_tma_tile"
// grid   = ["cdiv(c, CHANNELS) * cdiv(q, TQ) * cdiv(p, GROUPS * DOWN) * n"]
// block  = ["THREADS"]
// shared = "SHARED"
// args   = ["pixels", "weight", "bias?", "out"]
// programmatic = true
// ///
//
// nhwc_columns reads each row of the image r times, from L2, and waits for each row. Here a block starts the copies of
// all rows of its tile before it computes, so up to 220 KB per multiprocessor are in flight. A thread computes two
// channels of PIXELS columns and goes down DOWN rows of outputs. It reads each row of its window once from shared
// memory and adds the products to the sums of the r rows of outputs that depend on the row. GROUPS groups of threads go
// down their parts of the tile at the same time, and rows are copied in the order in which the groups read them. With
// only two channels per thread, there are enough registers for the filter and the sums. If whole tiles cover the rows
// of outputs, the loop over rows is unrolled: no branch tests which rows exist, so the products of all rows of the
// filter overlap. Limit: the first copies, which nothing overlaps, and the instructions for r * s products per output.

#include <opbench/activations.cuh>
#include <opbench/tile_rows.cuh>
#include <opbench/tma.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, 2> Pair;
constexpr int PAIRS = CHANNELS / 2, SLICES = (C + CHANNELS - 1) / CHANNELS, WARPS = (THREADS + 31) / 32;
constexpr int TP = GROUPS * DOWN, DOWNWARDS = (P + TP - 1) / TP, ACROSS = (Q + TQ - 1) / TQ, COLUMNS = TQ / PIXELS;
// rows from the first to the last of a filter; rows from group to group
constexpr int REACH = (R - 1) * DILATION + 1, STEP = DOWN * STRIDE;
constexpr int ROWS = STRIDE < REACH ? STRIDE : REACH;  // new image rows per row of outputs
constexpr bool WHOLE = P % TP == 0;                    // every group has DOWN rows of outputs
constexpr int UNROLLED = WHOLE ? (DOWN + 2 * AGES - 2) / AGES : 1;

struct Floats { float x[2]; };
__device__ __forceinline__ Floats floats_of(unsigned bf16_pair) {
    float low = __uint_as_float(bf16_pair << 16), high = __uint_as_float(bf16_pair & 0xffff0000u);
    asm volatile("" : "+f"(low), "+f"(high));  // otherwise the compiler would convert again for each product
    return {{low, high}};
}
__device__ __forceinline__ Floats floats_of(uint2 pair) { return {{__uint_as_float(pair.x), __uint_as_float(pair.y)}}; }

// image [n][h][w][C], weight [R][S][C], bias [C], out [n][P][Q][C]
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    depthwise_nhwc_tma_tile(const __grid_constant__ TensorMap pixels, const Pair* __restrict__ weight,
#if BIAS
                            const Pair* __restrict__ bias,
#endif
                            Pair* __restrict__ out) {
    extern __shared__ __align__(128) unsigned char shared[];  // [IN_H][PITCH], then one barrier per row
    if (threadIdx.x == 0) prefetch_map(&pixels);
    const unsigned memory = shared_address(shared);
    const int slice = blockIdx.x % SLICES, tile = blockIdx.x / SLICES, number = tile / ACROSS / DOWNWARDS;
    const int x0 = tile % ACROSS * TQ, y0 = tile / ACROSS % DOWNWARDS * TP;
    const TileRows<IN_H, GROUPS, STEP, WARPS> rows = {memory + IN_H * PITCH, (min(TP, P - y0) - 1) * STRIDE + REACH};
    let_next_launch_start();
    rows.init();
    wait_for_launches_before();
    rows.copy(IN_W * BYTES, [&](int row, unsigned barrier) {
        load(memory + row * PITCH, &pixels, barrier, slice * CHANNELS, x0 * STRIDE - PADDING,
             y0 * STRIDE - PADDING + row, number);
    });

    const int lane = threadIdx.x % PAIRS, pair = slice * PAIRS + lane;
    const int column = threadIdx.x / PAIRS % COLUMNS * PIXELS, group = threadIdx.x / (PAIRS * COLUMNS);
    const bool exists = pair < C / 2 && x0 + column < Q;
    Floats filter[R * S], shift = {};
#pragma unroll
    for (int tap = 0; tap < R * S; ++tap) filter[tap] = floats_of(exists ? weight[tap * (C / 2) + pair] : Pair());
#if BIAS
    if (exists) shift = floats_of(bias[pair]);
#endif
    __syncthreads();

    if (!exists) return rows.wait_for_all();
    const int lines = WHOLE ? DOWN : min(DOWN, P - y0 - group * DOWN), end = lines > 0 ? lines + AGES - 1 : 0;
    const unsigned char* from = shared + group * STEP * PITCH + column * STRIDE * BYTES + lane * sizeof(Pair);
    unsigned barrier = rows.barriers + group * STEP * 8;
    Pair* to = out + (((size_t)number * P + y0 + group * DOWN) * Q + x0 + column) * (C / 2) + pair;
    float sum[AGES][PIXELS][2] = {};
#pragma unroll UNROLLED
    for (int top = 0; top < end; top += AGES, from += AGES * STRIDE * PITCH, barrier += AGES * STRIDE * 8) {
#pragma unroll
        for (int slot = 0; slot < AGES; ++slot) {
            const int y = top + slot;  // the row of outputs whose sums begin
            if (y >= end) break;
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                if (y * STRIDE + i >= (lines - 1) * STRIDE + REACH) break;
                wait_for(barrier + (slot * STRIDE + i) * 8, 0);
                Floats window[SPAN];
#pragma unroll
                for (int k = 0; k < SPAN; ++k)
                    window[k] =
                        floats_of(*reinterpret_cast<const Pair*>(from + (slot * STRIDE + i) * PITCH + k * BYTES));
#pragma unroll
                for (int age = 0; age < AGES; ++age) {
                    const int below = i + age * STRIDE;  // the row of the filter, times DILATION
                    if (below % DILATION != 0 || below >= REACH || y - age < 0 || y - age >= lines) continue;
#pragma unroll
                    for (int j = 0; j < S; ++j)
#pragma unroll
                        for (int item = 0; item < PIXELS * 2; ++item) {
                            float& accumulator = sum[(slot - age + AGES) % AGES][item / 2][item % 2];
                            accumulator = fmaf(window[item / 2 * STRIDE + j * DILATION].x[item % 2],
                                               filter[below / DILATION * S + j].x[item % 2],
                                               below == 0 && j == 0 ? shift.x[item % 2] : accumulator);
                        }
                }
            }
            if (y < AGES - 1) continue;
#pragma unroll
            for (int pixel = 0; pixel < PIXELS; ++pixel) {
                if (Q % PIXELS != 0 && x0 + column + pixel >= Q) break;
                Vector<T, 2> result;
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    result.lane(half) =
                        (T)apply_activation<activation_of::EPILOGUE>(sum[(slot + 1) % AGES][pixel][half]);
                to[pixel * (C / 2)] = result.raw;
            }
            to += Q * (C / 2);
        }
    }
    rows.wait_for_all();
}
