// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
//     "bank_conflict_free",
// ]
// tile      = { m = "BM", n = "BN" }
// compute_capability = "9.0a"
//
// [variant.nhwc_wgmma_bf16]
// title     = "filters that equal their strides: one product with wgmma and TMA, whose columns are taps x filters"
// builds_on = "nhwc_mma_bf16"
// product   = "bf16"
// tune      = { BM = [128, 256], BN = [256, 128], GROUP = [8, 16] }
// where     = ["BM * BN == 128 * 256", "GROUP == 8 or BM == 128"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["bf16"] }
// requires  = [
//     "stride_d == t", "stride_h == r", "stride_w == s", "dilation_d == 1", "dilation_h == 1", "dilation_w == 1",
//     "padding_d == 0", "padding_h == 0", "padding_w == 0", "output_padding_d == 0", "output_padding_h == 0",
//     "output_padding_w == 0", "groups == 1", "c % 8 == 0", "k % 64 == 0", "w % 16 == 0",
//     "n * d * h * w + BM < 2 ** 31 and n * z * p * q < 2 ** 31 and t * r * s * k + BN < 2 ** 31",
// ]
//
// [variant.nhwc_wgmma_bf16.define]
// STAGES = "196608 // ((BM + BN) * 128)"
// BIAS   = "epilogue != 'none'"
// RELU   = "epilogue == 'bias_relu'"
//
// [variant.nhwc_wgmma_bf16.tensor_maps]
// map_image  = { tensor = "image", dims = ["c", "n * d * h * w"], box = [64, "BM"] }
// map_weight = { tensor = "weight", dims = ["t * r * s * k", "c"], box = [64, 64] }
// map_out    = { tensor = "out", dims = ["k", "s", "w", "n * z * p"], box = [64, 1, 16, 1] }
//
// [[variant.nhwc_wgmma_bf16.launch]]
// kernel = "conv_transpose3d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * d * h * w, BM) * cdiv(t * r * s * k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = ["map_image", "map_weight", "bias?", "map_out", "n * d * h * w", "c", "h", "w", "k", "t", "r", "s"]
// ///
//
// Where a filter is as large as its strides, windows do not overlap, and each output needs one voxel. The operator is
// then one matrix product: rows are voxels, columns are taps times output channels, which is how the weight lies in
// memory, and nothing has to be packed. matmul's persistent schedule computes it. A warp's 16 voxels of one row go to
// places that are s voxels apart, which is a box of a four-dimensional tensor map: TMA scatters them, 128 bytes each.
// Limit: HBM for few channels, as the output is the largest tensor; the tiles' way out of L2.

#include <opbench/consumer_tiles.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, GROUP> Walk;
typedef unsigned short T;

// d += bias of its column's channel, clipped at zero on request. Columns are taps x k; `column` is a multiple of 64.
template <int count>
__device__ __forceinline__ void add_channel_bias(float (&d)[count], const T* __restrict__ bias, int column, int k) {
#pragma unroll
    for (int part = 0; part < count / 32; ++part) {
        const T* own = bias + (column + part * 64) % k + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            float& value = d[part * 32 + i];
            value += widen(own[i / 4 * 8 + i % 2]);
            if (RELU) value = fmaxf(value, 0.0f);
        }
    }
}

// image [rows][c], weight [c][t][r][s][k], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv_transpose3d_nhwc_wgmma(const __grid_constant__ TensorMap map_image,
                                const __grid_constant__ TensorMap map_weight,
#if BIAS
                                const T* __restrict__ bias,
#endif
                                const __grid_constant__ TensorMap map_out, int rows, int c, int h, int w, int k, int t,
                                int r, int s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + EpilogueSmem<>::block_bytes);
    const int columns = t * r * s * k, steps = (c + 63) / 64;
    const Walk walk(rows, columns);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) {
            walk.for_each_tile([&](TilePlace tile) {
                ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                    load(a, &map_image, full, step * 64, tile.row);
#pragma unroll
                    for (int part = 0; part < BN; part += 64)
                        load(a + BM * 128 + part * 128, &map_weight, full, tile.column + part, step * 64);
                });
            });
        }
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
        multiply_tiles<Format::PRODUCT, true>(ring, walk, steps, [&](auto& sum, int row, int column) {
#if BIAS
            add_channel_bias(sum, bias, column, k);
#endif
            const int line = row / w, y = line % h, plane = line / h;
            out_slabs.store_parts(sum, [&](unsigned slab, int at) {
                const int own = column + at, tap = own / k;
                if (row >= rows || own >= columns) return;
                const int target = ((plane * t + tap / (r * s)) * h + y) * r + tap / s % r;
                store(&map_out, slab, own % k, tap % s, row % w, target);
            });
        });
        out_slabs.finish();
    }
}
