// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { m = "BM", n = "BN", k = "BK" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "groups == 1", "stride_d <= 8 and stride_h <= 8 and stride_w <= 8",
//     "padding_d <= 15 and padding_h <= 15 and padding_w <= 15",
//     "(t - 1) * dilation_d <= padding_d + 16 and (t - 1) * dilation_d <= 31",
//     "(r - 1) * dilation_h <= padding_h + 16 and (r - 1) * dilation_h <= 31",
//     "(s - 1) * dilation_w <= padding_w + 16 and (s - 1) * dilation_w <= 31",
//     "n * z * p * q + 512 < 2 ** 31 and t * r * s * (c + 64) < 2 ** 31",
// ]
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// define.BIAS   = "epilogue != 'none'"
// define.RELU   = "epilogue == 'bias_relu'"
// compute_capability = "9.0a"
// tune      = { BM = [128, 256], BN = [128, 64, 256] }
// where     = ["BM == 128 or BN != 256"]
//
// [tensor_maps.map_image]
// tensor = "image"
// type   = "PRODUCT"
// element_strides = [1, "stride_w", "stride_h", "stride_d", 1]
//
// [tensor_maps.map_image.im2col]
// lower    = ["-padding_w", "-padding_h", "-padding_d"]
// upper    = [
//     "padding_w - (s - 1) * dilation_w", "padding_h - (r - 1) * dilation_h", "padding_d - (t - 1) * dilation_d",
// ]
// channels = "BK"
// pixels   = "BM"
//
// [tensor_maps]
// map_weight = { tensor = "weight", type = "PRODUCT", dims = ["c", "t * r * s", "k"], box = ["BK", 1, "BN"] }
//
// [variant.nhwc_wgmma_bf16]
// title     = "implicit GEMM: bf16 wgmma and TMA in im2col mode, which gathers windows without address arithmetic"
// builds_on = "nhwc_mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0 and k % 8 == 0"]
// tensor_maps.map_out = { tensor = "out", dims = ["k", "n * z * p * q"], box = [64, 16] }
//
// [[variant.nhwc_wgmma_bf16.launch]]
// kernel = "conv3d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * z * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = ["map_image", "map_weight", "bias?", "map_out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
//
// [variant.nhwc_wgmma_tf32]
// title     = "implicit GEMM: TF32 wgmma and TMA in im2col mode, which also rounds to TF32"
// builds_on = "nhwc_mma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0 and k % 2 == 0"]
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv3d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * z * p * q, BM) * cdiv(k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_image", "map_weight", "bias?", "out", { struct = [
//     "n", "c", "d", "h", "w", "k", "t", "r", "s", "stride_d", "stride_h", "stride_w", "padding_d", "padding_h",
//     "padding_w", "dilation_d", "dilation_h", "dilation_w", "group_channels", "group_filters", "z", "p", "q",
// ] }]
// ///
//
// The kernel of conv2d/nhwc_wgmma with a third axis and dilation. With an im2col tensor map of five dimensions, one TMA
// instruction reads BM consecutive windows, along w, h, d and the volumes: of each window the voxel at one filter
// position. No thread computes or masks an address, as all threads of nhwc_mma do. Limit: L2, because each voxel is
// loaded t r s times; with 64 filters also shared memory, because BN is 64 and a product reads as many rows as columns.
// Idea: CUTLASS's implicit_gemm for sm90 (warp-specialised, im2col mode).

#include <opbench/consumer_tiles.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
#include <opbench/volume.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, 8> TileScheduler;
typedef Stored<Format::PRODUCT>::T T;

// image [n][d][h][w][c], weight [k][t][r][s][c], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv3d_nhwc_wgmma(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_weight,
#if BIAS
                      const T* __restrict__ bias,
#endif
#if BK == 64
                      const __grid_constant__ TensorMap map_out,
#else
                      T* __restrict__ out,
#endif
                      VolumeSizes size) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
    const int rows = size.n * size.z * size.p * size.q, k = size.k;
    const int steps = size.t * size.r * size.s * ((size.c + BK - 1) / BK);
    const TileScheduler scheduler(rows, k);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                const int line = tile.row / size.q, plane = line / size.p, volume = plane / size.z;
                const int x = tile.row % size.q * size.stride_w - size.padding_w;
                const int y = line % size.p * size.stride_h - size.padding_h;
                const int front = plane % size.z * size.stride_d - size.padding_d;
                int channel = 0, tap = 0, a = 0, i = 0, j = 0;  // tap: the filter element (a, i, j)
                ring.fill(steps, [&](int, unsigned stage, unsigned full) {
                    load_windows(stage, &map_image, full, channel, x, y, front, volume, j, i, a);
                    load(stage + BM * 128, &map_weight, full, channel, tap, tile.column);
                    if ((channel += BK) < size.c) return;
                    channel = 0, ++tap;
                    if ((j += size.dilation_w) < size.s * size.dilation_w) return;
                    j = 0;
                    if ((i += size.dilation_h) < size.r * size.dilation_h) return;
                    i = 0, a += size.dilation_d;
                });
            });
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
        multiply_tiles<Format::PRODUCT, false>(ring, scheduler, steps, [&](auto& sum, int row, int column) {
#if BIAS
            add_bias<RELU>(sum, bias, column, k);
#endif
#if BK == 64
            out_slabs.store_rows(sum, &map_out, row, column, rows, k);
#else
            store_pairs(sum, out, row, column, rows, k);
#endif
        });
        if (BK == 64) out_slabs.finish();
    }
}
