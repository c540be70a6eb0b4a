// /// opbench
// title     = "nhwc_mma_bf16_strided by wgmma and TMA in im2col mode: filters are read as they lie, in one launch"
// builds_on = "nhwc_mma_bf16_strided"
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "bank_conflict_free", "tma", "tensor_core",
//     "warp_specialised", "persistent",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "BN" }
// supports  = { layout = ["nhwc"], epilogue = ["none"], dtype = ["bf16"] }
// requires  = [
//     "1 < stride <= 2 and h % 2 == 0 and w % 2 == 0 and r == s and r <= 3 and padding == (r - 1) // 2",
//     "c % 8 == 0 and k % 8 == 0", "n * h * w + 512 < 2 ** 31", "r * s * k * c < 2 ** 31",
// ]
// compute_capability = "9.0a"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// define.GROUP  = "8"
// tune      = { BM = [128, 256], BN = [128, 64, 256] }
// where     = ["BM == 128 or BN != 256"]
//
// [tensor_maps]
// map_weight = { tensor = "weight", dims = ["c", "r * s", "k"], box = [64, 1, 64] }
//
// [tensor_maps.map_dout]
// tensor = "dout"
//
// [tensor_maps.map_dout.im2col]
// lower    = [0, 0]
// upper    = [0, 0]
// channels = 64
// pixels   = "BM"
//
// [[launch]]
// kernel = "conv2d_dgrad_nhwc_wgmma_strided"
// grid   = ["min(sm_count, 4 * cdiv(n * p * q, BM) * cdiv(c, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 16384"
// args   = ["map_dout", "map_weight", "dimage", "n", "h", "w", "c", "k", "r", "padding"]
// ///
//
// The phases of nhwc_mma_strided with the schedule of nhwc_wgmma. With stride 2, even sizes and these filters, each
// phase has as many pixels as dout, and its first window begins at dout's first pixel. So one im2col map serves all
// phases. The blocks process the tiles of all phases, those with the most filter positions first. A phase to which no
// filter position contributes, such as three of four with a 1x1 filter, is filled with zeros. The pixels of a phase are
// not neighbours in memory, so their lines of 128 bytes are stored one by one. Limit: that of nhwc_wgmma.

#include <opbench/ring.cuh>
#include <opbench/strided_phases.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;
constexpr int stride = 2, tiles = BM / 128;  // tiles: tiles of 64 rows that a warpgroup multiplies

// Call work(tile, a, b) for each tile of this block, in the phase with the remainders a and b.
template <class Work>
__device__ __forceinline__ void for_each_tile(const TileScheduler& scheduler, const Work& work) {
    for (int index = blockIdx.x; index < stride * stride * scheduler.count(); index += gridDim.x) {
        const int phase = index / scheduler.count();
        work(scheduler[index % scheduler.count()], phase / stride, phase % stride);
    }
}

// dout [n][h / 2][w / 2][k], weight [k][r][r][c], dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_dgrad_nhwc_wgmma_strided(const __grid_constant__ TensorMap map_dout,
                                    const __grid_constant__ TensorMap map_weight, unsigned short* __restrict__ dimage,
                                    int n, int h, int w, int c, int k, int r, int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    const int height = h / stride, width = w / stride, pixels = n * height * width, slices = (k + 63) / 64;
    Stages ring(memory, memory + Stages::bytes + 8 * 2048);
    const TileScheduler scheduler(pixels, c);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            for_each_tile(scheduler, [&](TilePlace tile, int a, int b) {
                const Residue down(a, r, h, stride, padding), across(b, r, w, stride, padding);
                const int image = tile.row / (height * width), pixel = tile.row % (height * width);
                int filter = 0, i = 0, j = 0;  // i, j: rows and columns of dout from the window's first
                ring.fill(down.taps * across.taps * slices, [&](int, unsigned rows, unsigned full) {
                    const int at_row = a + stride * (down.taps - 1 - i), at_column = b + stride * (across.taps - 1 - j);
                    load_windows(rows, &map_dout, full, filter, pixel % width, pixel / width, image, j, i);
                    for (int part = 0; part < BN; part += 64)
                        load(rows + (BM + part) * 128, &map_weight, full, tile.column + part, at_row * r + at_column,
                             filter);
                    if ((filter += 64) < k) return;
                    filter = 0;
                    if (++j == across.taps) j = 0, ++i;
                });
            });
    } else {
        registers_up<consumer_registers>();
        const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
        const int first = warp / 4 * tiles * 64 + warp % 4 * 16;  // the warp's first row of a tile
        unsigned char* const slab = shared + Stages::bytes + warp * 2048;
        for_each_tile(scheduler, [&](TilePlace tile, int a, int b) {
            const Residue down(a, r, h, stride, padding), across(b, r, w, stride, padding);
            const auto place = [&](int row) {
                const int image = row / (height * width), pixel = row % (height * width);
                const int y = pixel / width * stride + down.first, x = pixel % width * stride + across.first;
                return (((size_t)image * h + y) * w + x) * c;
            };
            const int steps = down.taps * across.taps * slices;
            if (steps == 0) {
                for (int i = 0; i < tiles * 16; ++i) {
                    const int row = tile.row + first + i / 16 * 64 + i % 16;
                    if (row >= pixels) continue;
                    for (int at = tile.column + lane * 8; at < min(c, tile.column + BN); at += 256)
                        *reinterpret_cast<uint4*>(dimage + place(row) + at) = make_uint4(0, 0, 0, 0);
                }
                return;
            }
            float sum[tiles][BN / 2];
            ring.drain(steps, [&](int step, unsigned stage) {
                multiply_stage<Format::bf16, true>(sum, stage + warp / 4 * tiles * 64 * 128, stage + BM * 128,
                                                   step > 0);
            });
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                const int row = tile.row + first + i * 64;
                size_t starts[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) starts[j] = place(row + j * 4 + lane / 8);
                __syncwarp();  // all lanes have read the lines of the previous rows
                store_lines(sum[i], slab, dimage, row, tile.column, pixels, c, [&](int j, int) { return starts[j]; });
            }
        });
    }
}
