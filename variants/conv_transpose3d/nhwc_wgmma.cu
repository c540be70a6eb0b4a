// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { m = "BM", n = "BN" }
// tune      = { BM = [128, 256], BN = [256, 128], GROUP = [8, 16] }
// where     = ["BM * BN == 128 * 256", "GROUP == 8 or BM == 128"]
// requires  = [
//     "stride_d == t", "stride_h == r", "stride_w == s", "dilation_d == 1", "dilation_h == 1", "dilation_w == 1",
//     "padding_d == 0", "padding_h == 0", "padding_w == 0", "output_padding_d == 0", "output_padding_h == 0",
//     "output_padding_w == 0", "groups == 1", "k % 64 == 0",
//     "n * d * h * w + BM < 2 ** 31 and n * z * p * q < 2 ** 31 and t * r * s * k + BN < 2 ** 31",
// ]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"] }
// define.BK     = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES = "196608 // ((BM + BN) * 128)"
// define.BIAS   = "epilogue != 'none'"
// define.RELU   = "epilogue == 'bias_relu'"
// compute_capability = "9.0a"
// tensor_maps.map_image = { tensor = "image", type = "PRODUCT", dims = ["c", "n * d * h * w"], box = ["BK", "BM"] }
//
// [variant.nhwc_wgmma_bf16]
// title     = "filter size equal to the stride: one GEMM by bf16 wgmma and TMA, columns = taps x filters"
// builds_on = "nhwc_mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0", "w % 16 == 0"]
//
// [variant.nhwc_wgmma_bf16.tensor_maps]
// map_weight = { tensor = "weight", dims = ["t * r * s * k", "c"], box = [64, 64] }
// map_out    = { tensor = "out", dims = ["k", "s", "w", "n * z * p"], box = [64, 1, 16, 1] }
//
// [[variant.nhwc_wgmma_bf16.launch]]
// kernel = "conv_transpose3d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * d * h * w, BM) * cdiv(t * r * s * k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16) + 32768"
// args   = ["map_image", "map_weight", "bias?", "map_out", "n * d * h * w", "c", "h", "w", "k", "t", "r", "s"]
//
// [variant.nhwc_wgmma_tf32]
// title     = "filter size equal to the stride: one GEMM by TF32 wgmma and TMA; weights are transposed first"
// builds_on = "nhwc_mma_tf32"
// mechanism = ["converted_ahead"]
// product   = "tf32"
// requires  = ["c % 4 == 0"]
// workspace = { turned = "t * r * s * k * c" }
//
// [variant.nhwc_wgmma_tf32.tensor_maps]
// map_weight = { tensor = "turned", type = "tf32", dims = ["c", "t * r * s * k"], box = [32, "BN"] }
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv_transpose3d_turn_weight"
// grid   = ["cdiv(t * r * s * k, 32)", "cdiv(c, 32)"]
// block  = [32, 8]
// args   = ["weight", "turned", "t * r * s * k", "c"]
// setup  = true
//
// [[variant.nhwc_wgmma_tf32.launch]]
// kernel = "conv_transpose3d_nhwc_wgmma"
// grid   = ["min(sm_count, cdiv(n * d * h * w, BM) * cdiv(t * r * s * k, BN))"]
// block  = [384]
// shared = "STAGES * ((BM + BN) * 128 + 16)"
// args   = ["map_image", "map_weight", "bias?", "out", "n * d * h * w", "c", "h", "w", "k", "t", "r", "s"]
// ///
//
// If a filter is as large as its strides, windows do not overlap, and each output depends on one voxel. The operator is
// then one matrix product: rows are voxels, columns are taps times output channels, which is the stored order of the
// weight. The schedule of matmul/wgmma_persistent computes it. In bf16 nothing has to be packed, and a warp's 16 voxels
// of one row are stored at places that are s voxels apart; this is a box of a four-dimensional tensor map, so TMA
// stores them, 128 bytes each. In TF32, wgmma needs the channels of a column to be contiguous, so a setup launch
// transposes the weights, and four lanes store a sector. Limit: HBM for few channels, because the output is the largest
// tensor; otherwise L2, from which the tiles are loaded.

#include <opbench/consumer_tiles.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Tiles<BM, BN, GROUP> TileScheduler;
typedef Stored<Format::PRODUCT>::T T;

// Add the bias of each column's channel to d, and apply ReLU on request. Columns are taps x k; `column` is a multiple
// of 64.
template <int count>
__device__ __forceinline__ void add_channel_bias(float (&d)[count], const T* __restrict__ bias, int column, int k) {
#pragma unroll
    for (int part = 0; part < count / 32; ++part) {
        const T* lane_bias = bias + (column + part * 64) % k + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            float& value = d[part * 32 + i];
            value += widen(lane_bias[i / 4 * 8 + i % 2]);
            if (RELU) value = fmaxf(value, 0.0f);
        }
    }
}

#if BK == 32
// weight [c][columns]; turned [columns][c]
extern "C" __global__ void __launch_bounds__(256)
    conv_transpose3d_turn_weight(const float* __restrict__ weight, float* __restrict__ turned, int columns, int c) {
    __shared__ float tile[32][33];
    const int column = blockIdx.x * 32, channel = blockIdx.y * 32;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (channel + i < c && column + threadIdx.x < columns)
            tile[i][threadIdx.x] = weight[(size_t)(channel + i) * columns + column + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8)
        if (column + i < columns && channel + threadIdx.x < c)
            turned[(size_t)(column + i) * c + channel + threadIdx.x] = tile[threadIdx.x][i];
}

// Store a warp's 16 rows, which are voxels from `row` on. Columns are taps x k; every 64 of them belong to one tap, and
// four lanes write a sector. `place(voxel, tap)` returns the number of the output voxel.
template <int count, class Place>
__device__ __forceinline__ void scatter_pairs(const float (&d)[count], T* __restrict__ out, int row, int column,
                                              int rows, int columns, int k, const Place& place) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < count / 32; ++part) {
        const int tap_column = column + part * 64, tap = tap_column / k;
        if (tap_column >= columns) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int voxel = row + lane / 4 + half * 8;
            if (voxel >= rows) continue;
            T* to = out + (size_t)place(voxel, tap) * k + tap_column % k + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 8; ++j)
                store_two(to + j * 8, d[part * 32 + j * 4 + half * 2], d[part * 32 + j * 4 + half * 2 + 1]);
        }
    }
}
#endif

// image [rows][c], weight [c][t][r][s][k] (TF32: [t][r][s][k][c]), bias [k], out [n][z][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv_transpose3d_nhwc_wgmma(const __grid_constant__ TensorMap map_image,
                                const __grid_constant__ TensorMap map_weight,
#if BIAS
                                const T* __restrict__ bias,
#endif
#if BK == 64
                                const __grid_constant__ TensorMap map_out,
#else
                                T* __restrict__ out,
#endif
                                int rows, int c, int h, int w, int k, int t, int r, int s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (BK == 64 ? EpilogueSmem<>::block_bytes : 0));
    const int columns = t * r * s * k, steps = (c + BK - 1) / BK;
    const TileScheduler scheduler(rows, columns);
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) {
            scheduler.for_each_tile([&](TilePlace tile) {
                ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                    load(a, &map_image, full, step * BK, tile.row);
#if BK == 64
#pragma unroll
                    for (int part = 0; part < BN; part += 64)
                        load(a + BM * 128 + part * 128, &map_weight, full, tile.column + part, step * 64);
#else
                    load(a + BM * 128, &map_weight, full, step * BK, tile.column);
#endif
                });
            });
        }
    } else {
        registers_up<consumer_registers>();
        EpilogueSmem<> out_slabs(slabs);
        multiply_tiles<Format::PRODUCT, BK == 64>(ring, scheduler, steps, [&](auto& sum, int row, int column) {
#if BIAS
            add_channel_bias(sum, bias, column, k);
#endif
            const auto line_of = [&](int voxel, int tap) {  // line of the output, numbered over n, z and p
                const int line = voxel / w;
                return ((line / h * t + tap / (r * s)) * h + line % h) * r + tap / s % r;
            };
#if BK == 64
            out_slabs.store_parts(sum, [&](unsigned slab, int at) {
                const int tap_column = column + at, tap = tap_column / k;
                if (row >= rows || tap_column >= columns) return;
                store(&map_out, slab, tap_column % k, tap % s, row % w, line_of(row, tap));
            });
#else
            scatter_pairs(sum, out, row, column, rows, columns, k, [&](int voxel, int tap) {
                return line_of(voxel, tap) * (w * s) + voxel % w * s + tap % s;
            });
#endif
        });
        out_slabs.finish();
    }
}
