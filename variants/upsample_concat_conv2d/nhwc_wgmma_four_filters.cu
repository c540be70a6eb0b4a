// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "fewer_operations", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "r == 3 and s == 3 and padding == 1",
//     "4 * (k + BN) * (9 * c2 + 4 * c1 + 64) < 2 ** 31",
//     "4 * n * h * w < 2 ** 31",
// ]
// flops     = "8 * n * h * w * k * (9 * c2 + 4 * c1)"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [128, 64, 256] }
// where     = ["BM == 128 or BN in (64, 128)"]
//
// [define]
// BK     = "64 if PRODUCT == 'bf16' else 32"
// BYTES  = "128 // BK"
// STAGES = "196608 // ((BM + BN) * 128)"
// DEPTH  = "9 * c2 + 4 * c1"
// TILES  = "n * cdiv(h, BM // 8) * cdiv(w, 8) * 4 * cdiv(k, BN)"
// BIAS   = "epilogue != 'none'"
// RELU   = "epilogue == 'bias_relu'"
//
// [workspace]
// filters = "k * DEPTH * BYTES"
//
// [tensor_maps]
// map_skip    = { tensor = "skip", type = "PRODUCT", element_strides = [1, 2, 2, 1], box = ["BK", 16, "BM // 4", 1] }
// map_low     = { tensor = "low", type = "PRODUCT", box = ["BK", 8, "BM // 8", 1] }
//
// [tensor_maps.map_of_skip]
// tensor  = "filters"
// type    = "PRODUCT"
// dims    = ["c2", 9, "4 * k"]
// strides = ["BYTES * c2", "BYTES * DEPTH"]
// box     = ["BK", 1, "BN"]
//
// [tensor_maps.map_of_low]
// tensor  = "filters"
// type    = "PRODUCT"
// offset  = "9 * c2"
// dims    = ["c1", 4, "4 * k"]
// strides = ["BYTES * c1", "BYTES * DEPTH"]
// box     = ["BK", 1, "BN"]
//
// [tensor_maps.map_out]
// tensor  = "out"
// dims    = ["k", 2, "w", 2, "n * h"]
// strides = ["2 * k", "4 * k", "4 * w * k", "8 * w * k"]
// box     = [64, 1, 8, 1, 1]
//
// [variant.nhwc_wgmma_four_filters_bf16]
// title     = "nhwc_four_filters by wgmma and TMA in bf16: TMA loads every other pixel of the skip"
// builds_on = "nhwc_four_filters_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c1 % 8 == 0 and c2 % 8 == 0 and k % 8 == 0"]
//
// [[variant.nhwc_wgmma_four_filters_bf16.launch]]
// kernel = "upsample_concat_conv2d_sum_filters"
// grid   = ["cdiv(4 * k * DEPTH, 256)"]
// block  = [256]
// args   = ["weight", "filters", "k", "c1", "c2"]
// setup  = true
//
// [[variant.nhwc_wgmma_four_filters_bf16.launch]]
// kernel = "upsample_concat_conv2d_nhwc_wgmma_four_filters"
// grid   = ["min(sm_count, TILES)"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = ["map_low", "map_skip", "map_of_low", "map_of_skip", "bias?", "map_out", "n", "c1", "c2", "h", "w", "k"]
//
// [variant.nhwc_wgmma_four_filters_tf32]
// title     = "nhwc_four_filters by wgmma and TMA in TF32: TMA loads every other pixel of the skip"
// builds_on = "nhwc_four_filters_tf32"
// product   = "tf32"
// requires  = ["c1 % 4 == 0 and c2 % 4 == 0 and k % 2 == 0"]
//
// [[variant.nhwc_wgmma_four_filters_tf32.launch]]
// kernel = "upsample_concat_conv2d_sum_filters"
// grid   = ["cdiv(4 * k * DEPTH, 256)"]
// block  = [256]
// args   = ["weight", "filters", "k", "c1", "c2"]
// setup  = true
//
// [[variant.nhwc_wgmma_four_filters_tf32.launch]]
// kernel = "upsample_concat_conv2d_nhwc_wgmma_four_filters"
// grid   = ["min(sm_count, TILES)"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_low", "map_skip", "map_of_low", "map_of_skip", "bias?", "out", "n", "c1", "c2", "h", "w", "k"]
// ///
//
// As nhwc_four_filters (its file explains why four filters of 2x2 replace one of 3x3 on the small image), with the
// schedule of conv2d/nhwc_wgmma. All pixels of a tile have the same parities of row and column. TMA loads every other
// pixel and row of the skip (element strides), and all pixels of the small image, as BM / 8 rows of 8 pixels. The
// tensor map of the output has the parities as dimensions, so TMA stores the pixels at their places. Limit: L2, because
// each pixel is loaded for every filter position that uses it.

#include <cuda_bf16.h>

#include <opbench/stride2_loader.cuh>
#include <opbench/stride2_tiles.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
#if BK == 64
typedef __nv_bfloat16 Weight;
#else
typedef float Weight;
#endif

typedef ParityTiles<BM, BN, BK> TileScheduler;

extern "C" __global__ void __launch_bounds__(256)
    upsample_concat_conv2d_sum_filters(const Weight* __restrict__ weight, Weight* __restrict__ filters, int k, int c1,
                                       int c2) {
    const int at = blockIdx.x * 256 + threadIdx.x;
    if (at < 4 * k * (9 * c2 + 4 * c1)) filters[at] = summed_filter(weight, at, k, c1, c2);
}

// low [n][h][w][c1], skip [n][2h][2w][c2], filters [4][k][9 c2 + 4 c1], bias [k], out [n][2h][2w][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    upsample_concat_conv2d_nhwc_wgmma_four_filters(const __grid_constant__ TensorMap map_low,
                                                   const __grid_constant__ TensorMap map_skip,
                                                   const __grid_constant__ TensorMap map_of_low,
                                                   const __grid_constant__ TensorMap map_of_skip,
#if BIAS
                                                   const Stored<Format::PRODUCT>::T* __restrict__ bias,
#endif
#if BK == 64
                                                   const __grid_constant__ TensorMap map_out,
#else
                                                   float* __restrict__ out,
#endif
                                                   int n, int c1, int c2, int h, int w, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
    const TileScheduler scheduler(n, c1, c2, h, w, k);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](int index) {
            const ParityPlace at = scheduler[index];
            ParityStep next;
            ring.fill(scheduler.steps, [&](int step, unsigned a, unsigned full) {
                next.copy(
                    scheduler, at, step,
                    [&](bool in_skip, int channel, int x, int y) {
                        load(a, in_skip ? &map_skip : &map_low, full, channel, x, y, at.image);
                    },
                    [&](bool in_skip, int channel, int position) {
                        load(a + BM * 128, in_skip ? &map_of_skip : &map_of_low, full, channel, position,
                             at.parity() * k + at.column);
                    });
            });
        });
    } else {
        registers_up<consumer_registers>();
        constexpr int tiles = BM / 128;  // tiles of 64 pixels per warpgroup
        const int first = (threadIdx.x / 128 - 1) * tiles * 64, warp = threadIdx.x / 32 % 4;
        float sum[tiles][BN / 2];
        EpilogueSmem<> out_slabs(slabs);
        scheduler.for_each_tile([&](int index) {
            ring.drain(scheduler.steps, [&](int step, unsigned a) {
                multiply_stage<Format::PRODUCT>(sum, a + first * 128, a + BM * 128, step > 0);
            });
            const ParityPlace at = scheduler[index];
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                const int y = at.y / 2 + (first + i * 64 + warp * 16) / 8;  // a warp's 16 pixels are two rows of 8
#if BIAS
                add_bias<RELU>(sum[i], bias, at.column, k);
#endif
#if BK == 64
                out_slabs.store_parts(sum[i], [&](unsigned slab, int part) {
                    for (int line = 0; line < 2; ++line)
                        if (y + line < h && at.column + part < k)
                            store(&map_out, slab + line * 1024, at.column + part, at.x % 2, at.x / 2, at.y % 2,
                                  at.image * h + y + line);
                });
#else
                store_parity(sum[i], out, scheduler, at, y);
#endif
            }
        });
        if (BK == 64) out_slabs.finish();
    }
}
