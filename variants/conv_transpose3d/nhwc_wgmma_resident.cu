// /// opbench
// title     = "weights stay in shared memory; one warpgroup stores a tile while the other one multiplies the next tile"
// builds_on = "nhwc_wgmma_bf16"
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
//     "bank_conflict_free",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [64, 128], BN = [256, 128], SLABS = [2, 4] }
// where     = ["BM * BN <= 16384"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["bf16"] }
// requires  = [
//     "stride_d == t", "stride_h == r", "stride_w == s", "dilation_d == 1", "dilation_h == 1", "dilation_w == 1",
//     "padding_d == 0", "padding_h == 0", "padding_w == 0", "output_padding_d == 0", "output_padding_h == 0",
//     "output_padding_w == 0", "groups == 1", "c % 8 == 0", "k % 64 == 0", "w % 16 == 0", "STAGES >= 2",
//     "cdiv(t * r * s * k, BN) <= 65535",
//     "n * d * h * w + BM < 2 ** 31 and n * z * p * q < 2 ** 31 and t * r * s * k + BN < 2 ** 31",
// ]
// define.STEPS    = "cdiv(c, 64)"
// define.STAGES   = "min(16, (231424 - SLABS * 16384 - STEPS * BN * 128) // (BM * 128))"
// define.BIAS     = "epilogue != 'none'"
// define.EPILOGUE = "epilogue"
// compute_capability = "9.0a"
//
// [tensor_maps]
// map_image  = { tensor = "image", dims = ["c", "n * d * h * w"], box = [64, "BM"] }
// map_weight = { tensor = "weight", dims = ["t * r * s * k", "c"], box = [64, 64] }
// map_out    = { tensor = "out", dims = ["k", "s", "w", "n * z * p"], box = [64, 1, 16, 1] }
//
// [[launch]]
// kernel = "conv_transpose3d_nhwc_wgmma_resident"
// grid   = [
//     "min(max(1, sm_count // cdiv(t * r * s * k, BN)), cdiv(n * d * h * w, BM))", "cdiv(t * r * s * k, BN)",
// ]
// block  = [384]
// shared = "STEPS * BN * 128 + STAGES * (BM * 128 + 16) + SLABS * 16384 + 16"
// args   = ["map_image", "map_weight", "bias?", "map_out", "n * d * h * w", "h", "w", "k", "t", "r", "s"]
// ///
//
// In nhwc_wgmma_bf16, every tile loads its weights again: with 256 channels and 512 columns, L2 delivers twice the bytes
// that HBM moves. The tensor cores also wait while a tile is stored; if the depth is short, this is a large part of the
// time. Here all tiles of a block have the same columns. The block loads their weights once, with its first tile, so L2
// delivers little more than the image, once per BN columns. The warpgroups alternate as in linear/wgmma_pingpong: each
// one has its own tiles. The position of a column's tap is computed once per block, so a store needs no division.
// Limit: HBM; and shared memory must have room for all channels of BN columns.

#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, BM * 128, 1, 1> Stages;
typedef Tiles<BM, BN, 1> Walk;

// image [rows][c], weight [c][t][r][s][k], bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv_transpose3d_nhwc_wgmma_resident(const __grid_constant__ TensorMap map_image,
                                         const __grid_constant__ TensorMap map_weight,
#if BIAS
                                         const unsigned short* __restrict__ bias,
#endif
                                         const __grid_constant__ TensorMap map_out, int rows, int h, int w, int k,
                                         int t, int r, int s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int weight_bytes = BN * 128, parts = BN / 64;  // of a step
    const unsigned weights = shared_address(shared), memory = weights + STEPS * weight_bytes;
    const unsigned slabs = memory + Stages::bytes, barriers = slabs + EpilogueSmem<SLABS>::block_bytes;
    Stages ring(memory, barriers);
    Turns turns(barriers + Stages::barrier_bytes);
    const Walk walk(rows, BN);  // only along the rows
    const int column = blockIdx.y * BN, columns = t * r * s * k;
    if (threadIdx.x == 0) {
        turns.init();
        ring.init();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) {
            bool is_first = true;
            walk.for_each_tile([&](TilePlace tile) {
                const auto copy = [&](int step, unsigned stage, unsigned full) {
                    load(stage, &map_image, full, step * 64, tile.row);
                    if (!is_first) return;
                    const unsigned to = weights + step * weight_bytes;
                    for (int part = 0; part < BN; part += 64)
                        load(to + part * 128, &map_weight, full, column + part, step * 64);
                };
                ring.fill(STEPS, copy, 0, BM * 128 + (is_first ? weight_bytes : 0));
                is_first = false;
            });
        }
    } else {
        registers_up<consumer_registers>();
        int channel[parts], tap_w[parts], tap_line[parts];
#pragma unroll
        for (int part = 0; part < parts; ++part) {
            const int tap_column = column + part * 64, tap = tap_column / k;
            channel[part] = tap_column % k;
            tap_w[part] = tap % s;
            tap_line[part] = (tap / (r * s) * h * r) + tap / s % r;
        }
        const int warp = threadIdx.x / 32 % 4;
        float sum[BM / 64][BN / 2];
        EpilogueSmem<SLABS> out_slabs(slabs);
        turns.for_each_tile(walk, ring, STEPS, [&](TilePlace tile) {
            ring.drain(STEPS, [&](int step, unsigned stage) {
                multiply_stage<Format::bf16, true>(sum, stage, weights + step * weight_bytes, step > 0);
                if (step == STEPS - 1) turns.end();
            });
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) {
#if BIAS
#pragma unroll
                for (int part = 0; part < parts; ++part)
                    add_bias<follows_in::EPILOGUE>(reinterpret_cast<float (&)[32]>(sum[i][part * 32]),
                                                   bias + channel[part], 0, 64);
#endif
                const int row = tile.row + i * 64 + warp * 16, line = row / w, volume = line / h;
                const int out_line = (volume * t * h + line - volume * h) * r;  // of tap 0, over n, z and p
                out_slabs.store_parts(sum[i], [&](unsigned slab, int at) {
                    if (row >= rows || column + at >= columns) return;
                    store(&map_out, slab, channel[at / 64], tap_w[at / 64], row - line * w,
                          out_line + tap_line[at / 64]);
                });
            }
        });
        out_slabs.finish();
    }
}
