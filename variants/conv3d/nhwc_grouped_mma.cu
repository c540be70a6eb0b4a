// /// opbench
// title     = "narrow groups, bf16 mma.sync: a block loads a tile of 64 channels once, 8 output channels per warp"
// builds_on = "nhwc_mma_bf16"
// mechanism = [
//     "coalesced", "vectorised_access", "compile_time_sizes", "shared_memory_tile", "register_tile",
//     "bank_conflict_free", "async_copy", "tensor_core",
// ]
// product   = "bf16"
// tune      = { TP = [8, 4, 16], TQ = [28, 16, 8, 56] }
// where     = ["TP * TQ % 16 == 0 and 64 <= TP * TQ and TP * TQ <= 256"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["bf16"] }
// requires  = [
//     "k == c", "c == 8 * groups or c == 16 * groups or c == 32 * groups",
//     "t * r * s * group_channels <= 320", "SHARED <= 113 * 1024",
//     "n * d * h * w * c < 2 ** 31 and n * z * p * q * k < 2 ** 31",
// ]
// compute_capability = "8.0"
//
// [define]
// BIAS = "epilogue != 'none'"
// RELU = "epilogue == 'bias_relu'"
// GROUP = "group_channels"
// TAPS_D = "t"
// TAPS_H = "r"
// TAPS_W = "s"
// STRIDE_D = "stride_d"
// STRIDE_H = "stride_h"
// STRIDE_W = "stride_w"
// DILATION_D = "dilation_d"
// DILATION_H = "dilation_h"
// DILATION_W = "dilation_w"
// IN_H = "(TP - 1) * stride_h + (r - 1) * dilation_h + 1"
// IN_W = "(TQ - 1) * stride_w + (s - 1) * dilation_w + 1"
// SHARED = """128 * max(t * ((TP - 1) * stride_h + (r - 1) * dilation_h + 1) *
//     ((TQ - 1) * stride_w + (s - 1) * dilation_w + 1) + 1, TP * TQ)"""
//
// [[launch]]
// kernel = "conv3d_nhwc_grouped_mma"
// grid   = ["n * z * cdiv(p, TP) * cdiv(q, TQ) * cdiv(c, 64)"]
// block  = [256]
// shared = "SHARED"
// args   = [
//     "image", "weight", "bias?", "out", "c", "d", "h", "w", "padding_d", "padding_h", "padding_w", "z", "p", "q",
// ]
// ///
//
// With 8 channels in a group, an output needs only 72 products per channel that it reads. So memory is the limit, and a
// tile of a dense product would be mostly padding. Here a block copies 64 channels of a tile of voxels, with its
// border, into shared memory once; the 16 bytes of a group of neighbouring voxels form a row. ldmatrix reads these
// rows: 16 voxels of one tap, or of two taps, are a fragment of mma.m16n8k16, at any position of the tap. The 8 filters
// of a warp stay in registers for the whole tile. Outputs go through the same memory, so that 8 threads write 128 bytes
// of a voxel. Limit: HBM, and the borders of tiles, which are read again from L2.

#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
#include <cuda_bf16.h>
using namespace opbench;

typedef __nv_bfloat16 T;
constexpr int VOXELS = TAPS_D * IN_H * IN_W;
constexpr int PITCH = VOXELS | 1;  // chunks of a slice of 8 channels: odd, so that copies have no bank conflicts
constexpr int PARTS = GROUP / 8;   // slices that an output needs
constexpr int ITEMS = TAPS_D * TAPS_H * TAPS_W * PARTS, STEPS = (ITEMS + 1) / 2, TILES = TP * TQ / 16;

// Return the distance of slice `item` of the depth, in chunks, from an output's first voxel in its group's first slice.
__device__ __forceinline__ constexpr int offset_of(int item) {
    const int tap = item / PARTS, a = tap / (TAPS_H * TAPS_W), i = tap / TAPS_W % TAPS_H, j = tap % TAPS_W;
    return item % PARTS * PITCH + (a * IN_H + i * DILATION_H) * IN_W + j * DILATION_W;
}

// image [n][d][h][w][c], weight [c][TAPS_D][TAPS_H][TAPS_W][GROUP], bias [c], out [n][z][p][q][c]
extern "C" __global__ void __launch_bounds__(256, 2)
    conv3d_nhwc_grouped_mma(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                            const T* __restrict__ bias,
#endif
                            T* __restrict__ out, int c, int d, int h, int w, int padding_d, int padding_h,
                            int padding_w, int z, int p, int q) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int slices = (c + 63) / 64, columns = (q + TQ - 1) / TQ, rows = (p + TP - 1) / TP;
    const int channel0 = blockIdx.x % slices * 64, tile = blockIdx.x / slices;
    const int x0 = tile % columns * TQ, y0 = tile / columns % rows * TP, plane = tile / columns / rows;
    const int front = plane % z * STRIDE_D - padding_d, number = plane / z;

    const int chunk = threadIdx.x % 8, top = y0 * STRIDE_H - padding_h, left = x0 * STRIDE_W - padding_w;
    const bool exists = channel0 + chunk * 8 < c;
    const T* from = image + (size_t)number * d * h * w * c + channel0 + chunk * 8;
#pragma unroll 4
    for (int voxel = threadIdx.x / 8; voxel < VOXELS; voxel += 32) {
        const int depth = front + voxel / (IN_H * IN_W) * DILATION_D;
        const int y = top + voxel / IN_W % IN_H, x = left + voxel % IN_W;
        const bool inside =
            exists && (unsigned)depth < (unsigned)d && (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
        copy_chunk(shared + (chunk * PITCH + voxel) * 16, from + (inside ? ((depth * h + y) * w + x) * c : 0),
                   inside ? 16 : 0);
    }
    commit();

    // The filters of this warp: of each slice of the depth, a thread has two neighbours of one filter.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = channel0 + warp * 8;
    unsigned filter[2 * STEPS] = {};
    if (first < c) {
        const T* lane_weights = weight + (size_t)(first + lane / 4) * (ITEMS * 8) + lane % 4 * 2;
#pragma unroll
        for (int item = 0; item < ITEMS; ++item)
            filter[item] = *reinterpret_cast<const unsigned*>(lane_weights + item * 8);
    }
    wait<0>();
    __syncthreads();

    // Lane l provides ldmatrix with the chunk of output l % 16 of a tile, in the first or second of two slices.
    const unsigned memory = (unsigned)__cvta_generic_to_shared(shared) + warp / PARTS * PARTS * PITCH * 16;
    float sum[TILES][4] = {};
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        const int output = m * 16 + lane % 16;
        const unsigned at = memory + (output / TQ * STRIDE_H * IN_W + output % TQ * STRIDE_W) * 16;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool pair = 2 * step + 1 < ITEMS;
            unsigned a[4];
            load_matrices(a, at + (lane < 16 || !pair ? offset_of(2 * step) : offset_of(2 * step + 1)) * 16);
            if (!pair) a[2] = a[3] = 0;  // the last slice has no second one, and infinity times 0 is no number
            mma_bf16(sum[m], a, filter[2 * step], filter[2 * step + 1]);
        }
    }
    __syncthreads();

    float shift[2] = {};
#if BIAS
    if (first < c) shift[0] = (float)bias[first + lane % 4 * 2], shift[1] = (float)bias[first + lane % 4 * 2 + 1];
#endif
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float value[2] = {sum[m][half * 2] + shift[0], sum[m][half * 2 + 1] + shift[1]};
            if (RELU) value[0] = fmaxf(value[0], 0.0f), value[1] = fmaxf(value[1], 0.0f);
            const __nv_bfloat162 both = __floats2bfloat162_rn(value[0], value[1]);
            unsigned char* to = shared + swizzled_offset(m * 16 + half * 8 + lane / 4, warp) + lane % 4 * 4;
            *reinterpret_cast<__nv_bfloat162*>(to) = both;
        }
    __syncthreads();
    if (!exists) return;
#pragma unroll 4
    for (int output = threadIdx.x / 8; output < TP * TQ; output += 32) {
        const int y = y0 + output / TQ, x = x0 + output % TQ;
        if (y < p && x < q)
            *reinterpret_cast<uint4*>(out + ((size_t)(plane * p + y) * q + x) * c + channel0 + chunk * 8) =
                *reinterpret_cast<const uint4*>(shared + swizzled_offset(output, chunk));
    }
}
