// /// opbench
// title     = "narrow groups: TMA copies all rows of a tile at once; each row is multiplied when it arrives"
// builds_on = "nhwc_grouped_mma"
// mechanism = [
//     "coalesced", "vectorised_access", "compile_time_sizes", "shared_memory_tile", "register_tile",
//     "bank_conflict_free", "async_copy", "tma", "tensor_core", "warp_shuffle",
// ]
// product   = "bf16"
// tune      = { DOWN = [14, 7], TQ = [56, 32, 16] }
// where     = ["TQ < 56 or DOWN == 14"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["bf16"] }
// requires  = [
//     "k == c", "c == 8 * groups or c == 16 * groups", "t == 1 and stride_d == 1 and padding_d == 0",
//     "stride_h == 1 and stride_w == 1 and dilation_h == 1 and dilation_w == 1", "r * s <= 9",
//     "SHARED <= 227 * 1024", "GROUP == 8 or THREADS <= 384", "n * d * p * q * k < 2 ** 31",
// ]
// compute_capability = "9.0"
//
// [define]
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// GROUP = "group_channels"
// C = "c"
// P = "p"
// Q = "q"
// R = "r"
// S = "s"
// PADDING_H = "padding_h"
// PADDING_W = "padding_w"
// IN_H = "2 * DOWN + r - 1"
// IN_W = "TQ + s - 1"
// THREADS = "TQ * 8"
// SHARED = "(2 * DOWN + r - 1) * ((TQ + s - 1) * 128 + 8)"
// BLOCKS = "max(1, min(233472 // (SHARED + 1024), (512 if GROUP == 8 else 384) // THREADS))"
//
// [tensor_maps]
// voxels = { tensor = "image", dims = ["c", "w", "h", "n * d"], box = [64, "IN_W", 1, 1] }
//
// [[launch]]
// kernel = "conv3d_nhwc_grouped_tma"
// grid   = ["cdiv(c, 64) * cdiv(q, TQ) * cdiv(p, 2 * DOWN) * n * d"]
// block  = ["THREADS"]
// shared = "SHARED"
// args   = ["voxels", "weight", "bias?", "out"]
// ///
//
// In nhwc_grouped_mma, a block loads, multiplies and stores one after the other, and reads a fragment for each tap of
// each output. Here TMA copies all rows of a tile at the start of a block, up to 220 KB, and warps multiply rows as
// they arrive. A fragment of mma.m16n8k16 has eight columns of two rows, one in each half of the tile, at two
// neighbouring taps; the last of three taps is a fragment of mma.m16n8k8. Each fragment is read once, by ldmatrix, and
// multiplied by the filters of all r rows of outputs that depend on the row; the sums of these rows stay in registers.
// A warp computes 32 channels, so four lanes transpose their results and write 64 bytes of a voxel. Limit: the first
// copies, which nothing overlaps, then HBM.

#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
#include <opbench/tile_rows.cuh>
#include <opbench/tma.cuh>
#include <cuda_bf16.h>
using namespace opbench;

typedef __nv_bfloat16 T;
constexpr int PARTS = GROUP / 8;  // chunks of 8 channels that an output depends on
constexpr int TP = 2 * DOWN, TAPS = R * S, WARPS = THREADS / 32;
constexpr int SLICES = (C + 63) / 64, DOWNWARDS = (P + TP - 1) / TP, ACROSS = (Q + TQ - 1) / TQ;

// Load two 8 x 8 matrices; the first 16 lanes provide the addresses of their rows.
__device__ __forceinline__ void load_two(unsigned (&to)[2], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(row)
                 : "memory");
}
__device__ __forceinline__ void mma_half(float (&sum)[4], const unsigned (&a)[2], unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                 "{%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Before: four neighbouring lanes have one word of each of four octets. After: each lane has all four words of one
// octet.
__device__ __forceinline__ void transpose_quad(unsigned (&word)[4], int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int bit = i < 2 ? 1 : 2, low = i < 2 ? i * 2 : i - 2, high = low + bit;
        const bool upper = lane & bit;
        const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? word[low] : word[high], bit);
        if (upper)
            word[low] = other;
        else
            word[high] = other;
    }
}

// image [n][d][h][w][c], weight [c][R][S][GROUP], bias [c], out [n][d][p][q][c]
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv3d_nhwc_grouped_tma(const __grid_constant__ TensorMap voxels, const T* __restrict__ weight,
#if BIAS
                            const T* __restrict__ bias,
#endif
                            T* __restrict__ out) {
    extern __shared__ __align__(1024) unsigned char shared[];  // [IN_H][IN_W][64 channels], then one barrier per row
    if (threadIdx.x == 0) prefetch_map(&voxels);
    const unsigned memory = shared_address(shared);
    const int slice = blockIdx.x % SLICES * 64, tile = blockIdx.x / SLICES, plane = tile / ACROSS / DOWNWARDS;
    const int x0 = tile % ACROSS * TQ, y0 = tile / ACROSS % DOWNWARDS * TP;
    const TileRows<IN_H, 2, DOWN, WARPS> rows = {memory + IN_H * IN_W * row_bytes, IN_H};
    rows.init();
    rows.copy(IN_W * row_bytes, [&](int row, unsigned barrier) {
        load(memory + row * IN_W * row_bytes, &voxels, barrier, slice, x0 - PADDING_W, y0 - PADDING_H + row, plane);
    });

    // A warp computes 32 channels of eight columns. A thread keeps two neighbouring channels of each tap of its
    // filters.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int half = warp % 2, column = warp / 2 * 8, first = slice + half * 32;
    unsigned filter[4][PARTS][TAPS] = {}, added[4] = {};
#pragma unroll
    for (int octet = 0; octet < 4; ++octet) {
        if (first + octet * 8 >= C) continue;
        const T* lane_weights = weight + (size_t)(first + octet * 8 + lane / 4) * (TAPS * GROUP) + lane % 4 * 2;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                filter[octet][part][tap] = *reinterpret_cast<const unsigned*>(lane_weights + tap * GROUP + part * 8);
#if BIAS
        added[octet] = *reinterpret_cast<const unsigned*>(bias + first + octet * 8 + lane % 4 * 2);
#endif
    }
    __syncthreads();

    // Lane l provides ldmatrix with the address of column l % 8: in the upper or lower half, at one of two neighbouring
    // taps.
    const int voxel = lane / 8 % 2 * DOWN * IN_W + column + lane % 8 + lane / 16;
    const int x = x0 + column + lane / 4, channel = first + lane % 4 * 8;
    const bool exists = x < Q && channel < C;
    T* to = out + (((size_t)plane * P + y0) * Q + x) * C + channel;
    float sum[R][4][4] = {};  // [age][octet]; the last index is that of a fragment, whose second half is the lower row
    const int end = x0 + column < Q ? DOWN + R - 1 : 0;
    for (int top = 0; top < end; top += R) {
#pragma unroll
        for (int slot = 0; slot < R; ++slot) {
            const int y = top + slot;  // the row of the image in each half, and the row of outputs whose sums begin
            if (y >= end) break;
#pragma unroll
            for (int item = 0; item < 16; ++item) {
                const __nv_bfloat162 shift = *reinterpret_cast<const __nv_bfloat162*>(&added[item / 4]);
                sum[slot][item / 4][item % 4] = item % 2 ? __high2float(shift) : __low2float(shift);
            }
            unsigned at[(S + 1) / 2];
#pragma unroll
            for (int j = 0; j < S; j += 2)
                at[j / 2] = memory + swizzled<row_bytes>((y * IN_W + voxel + j) * row_bytes + half * 64);
            wait_for(rows.barriers + y * 8, 0);
            wait_for(rows.barriers + (y + DOWN) * 8, 0);
#pragma unroll
            for (int chunk = 0; chunk < 4; ++chunk) {
                const int group = chunk / PARTS * PARTS, part = chunk % PARTS;
#pragma unroll
                for (int j = 0; j < S; j += 2) {
                    unsigned a[4], single[2];
                    const unsigned row = at[j / 2] ^ chunk * 16;  // a swizzle is an exclusive or
                    if (j + 1 < S)
                        load_matrices(a, row);
                    else
                        load_two(single, row);
#pragma unroll
                    for (int octet = group; octet < group + PARTS; ++octet)
#pragma unroll
                        for (int age = 0; age < R; ++age) {
                            float (&own)[4] = sum[(slot - age + R) % R][octet];
                            const unsigned (&taps)[TAPS] = filter[octet][part];
                            if (j + 1 < S)
                                mma_bf16(own, a, taps[age * S + j], taps[age * S + j + 1]);
                            else
                                mma_half(own, single, taps[age * S + j]);
                        }
                }
            }
            if (y < R - 1) continue;
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                unsigned pairs[4];
#pragma unroll
                for (int octet = 0; octet < 4; ++octet) {
                    float (&own)[4] = sum[(slot + 1) % R][octet];
                    float left = own[lower * 2], right = own[lower * 2 + 1];
                    if (RELU) left = fmaxf(left, 0.0f), right = fmaxf(right, 0.0f);
                    const __nv_bfloat162 both = __floats2bfloat162_rn(left, right);
                    pairs[octet] = *reinterpret_cast<const unsigned*>(&both);
                }
                transpose_quad(pairs, lane);
                if (exists && y0 + y - (R - 1) + lower * DOWN < P)
                    *reinterpret_cast<uint4*>(to + lower * (DOWN * Q * C)) =
                        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
            }
            to += Q * C;
        }
    }
    rows.wait_for_all();
}
