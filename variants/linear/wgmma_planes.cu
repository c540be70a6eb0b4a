// /// opbench
// title     = "wgmma with float32 accuracy: each block splits its weights into two f16 parts; stream-K"
// builds_on = "wgmma_few_rows_tf32"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma",
//     "tensor_core", "operand_split", "warp_specialised", "overlapped_launch",
// ]
// product   = "f16x3"
// supports  = { epilogue = ["bias", "bias_relu"] }
// requires  = ["k % 4 == 0 and n % 4 == 0", "(BLOCKS + TILES) * 16384 <= 2 ** 30 and n * max(m, k) < 2 ** 31"]
// compute_capability = "9.0a"
//
// [define]
// TILES  = "cdiv(m, 128) * cdiv(n, 128)"
// BLOCKS = "min(132, cdiv(TILES * cdiv(k, 64), 4))"
// PITCH  = "cdiv(k, 8) * 8"
// RELU   = "epilogue == 'bias_relu'"
//
// [workspace]
// x_planes    = "m * PITCH"
// x_exponents = "m"
// parts       = "(BLOCKS + TILES) * 16384"
//
// [tensor_maps]
// map_weight = { tensor = "weight", box = [64, 128], swizzle = "none" }
//
// [tensor_maps.map_x]
// tensor  = "x_planes"
// type    = "f16"
// dims    = ["k", "m", 2]
// strides = ["2 * PITCH", "2 * PITCH * m"]
// box     = [64, 128, 2]
//
// [[launch]]
// kernel = "linear_split_x"
// grid   = ["m"]
// block  = [256]
// args   = ["x", "x_planes", "x_exponents", "m", "k"]
//
// [[launch]]
// kernel = "linear_wgmma_planes"
// grid   = ["BLOCKS"]
// block  = [384]
// shared = "3 * 32768 + 2 * 65536 + 256"
// args   = ["map_x", "map_weight", "x_exponents", "parts", "m", "n", "k"]
// programmatic = true
// early  = ["weight"]
//
// [[launch]]
// kernel = "linear_add_parts"
// grid   = ["cdiv(m * n, 1024)"]
// block  = [256]
// args   = ["parts", "bias", "out", "m", "n", "k", "BLOCKS"]
// programmatic = true
// ///
//
// The products of matmul/wgmma_planes, for batches up to the size of a training step. A separate pass that splits the
// weights would move three times as many bytes in addition; here the weights are read from DRAM once, as floats. TMA
// copies 128 x 64 weights; a warpgroup finds their largest magnitude, scales them by a power of two, and writes both
// f16 parts for the two warpgroups that multiply. A layer has too few tiles for all multiprocessors, or too many for
// one wave and too few for two. So the blocks divide the steps of all tiles evenly (Stream-K), and a second kernel adds
// their sums in order, then bias and ReLU. Limit: with 128 rows, both DRAM and the tensor cores; with fewer rows only
// DRAM, and then columns of zeros cost nothing. Ideas: Stream-K, block floating point.

#include <opbench/streamed_weights.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

// x_planes [2][m][PITCH], weight [n][k], parts [BLOCKS + TILES][128][128]
extern "C" __global__ void __launch_bounds__(384, 1)
    linear_wgmma_planes(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_weight,
                        const int* __restrict__ x_exponents, float* __restrict__ parts, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    StreamedWeights<2, false>::multiply(shared, &map_x, &map_weight, x_exponents, parts,
                                        StreamK(m, n, (k + 63) / 64, gridDim.x), m);
}

extern "C" __global__ void __launch_bounds__(256)
    linear_split_x(const float* __restrict__ x, __half* __restrict__ planes, int* __restrict__ exponents, int m,
                   int k) {
    let_next_launch_start();
    split_rows(x, planes, exponents, m, k, PITCH);
}

// bias [n], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    linear_add_parts(const float* parts, const float* __restrict__ bias, float* __restrict__ out, int m, int n, int k,
                     int blocks) {
    wait_for_launches_before();
    StreamK(m, n, (k + 63) / 64, blocks).add(parts, m, n, [&](const float (&sum)[4], int row, int column) {
        float4 x = *reinterpret_cast<const float4*>(bias + column);
        x.x += sum[0], x.y += sum[1], x.z += sum[2], x.w += sum[3];
        if (RELU) x.x = fmaxf(x.x, 0.0f), x.y = fmaxf(x.y, 0.0f), x.z = fmaxf(x.z, 0.0f), x.w = fmaxf(x.w, 0.0f);
        *reinterpret_cast<float4*>(out + (size_t)row * n + column) = x;
    });
}
