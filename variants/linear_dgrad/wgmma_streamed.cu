// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma",
//     "tensor_core", "warp_specialised", "overlapped_launch",
// ]
// supports  = { epilogue = ["none", "mask"] }
// requires  = ["n % 4 == 0 and k % 4 == 0", "(BLOCKS + TILES) * 16384 <= 2 ** 30 and k * max(m, n) < 2 ** 31"]
// compute_capability = "9.0a"
//
// [define]
// PLANES   = "2 if PRODUCT == 'f16x3' else 1"
// TILES    = "cdiv(m, 128) * cdiv(k, 128)"
// BLOCKS   = "min(132, cdiv(TILES * cdiv(n, 64), 4))"
// PITCH    = "cdiv(n, 8) * 8"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [workspace]
// dout_planes    = "cdiv(m * PITCH * PLANES, 2)"
// dout_exponents = "m"
// parts          = "(BLOCKS + TILES) * 16384"
//
// [tensor_maps]
// map_weight = { tensor = "weight", box = [64, 64], swizzle = "none" }
//
// [tensor_maps.map_dout]
// tensor  = "dout_planes"
// type    = "f16"
// dims    = ["n", "m", "PLANES"]
// strides = ["2 * PITCH", "2 * PITCH * m"]
// box     = [64, 128, "PLANES"]
//
// [[launch]]
// kernel = "linear_dgrad_split_dout"
// grid   = ["m"]
// block  = [256]
// args   = ["dout", "dout_planes", "dout_exponents", "m", "n"]
//
// [[launch]]
// kernel = "linear_dgrad_wgmma_streamed"
// grid   = ["BLOCKS"]
// block  = [384]
// shared = "7 * 32768 + 256"
// args   = ["map_dout", "map_weight", "dout_exponents", "parts", "m", "n", "k"]
// programmatic = true
// early  = ["weight"]
//
// [[launch]]
// kernel = "linear_dgrad_add_parts"
// grid   = ["cdiv(m * k, 1024)"]
// block  = [256]
// args   = ["parts", "out?", "dx", "m", "n", "k", "BLOCKS"]
// programmatic = true
//
// [variant.wgmma_halves]
// title     = "TF32 accuracy by f16 wgmma: each block rounds its weights, and wgmma transposes them"
// builds_on = "mma_tf32_split"
// product   = "f16"
// precision = "tf32"
//
// [variant.wgmma_planes]
// title     = "wgmma with float32 accuracy: each block splits its weights into two f16 parts, three products"
// builds_on = "wgmma_halves"
// mechanism = ["operand_split"]
// product   = "f16x3"
// ///
//
// linear/wgmma_planes with the weights stored by rows. As floats, wgmma could not read them in this order, and a
// separate pass would have to transpose them; but wgmma can transpose the f16 planes, which the block writes anyway.
// Each row of dout has its own power of two, and so has each tile of 64 x 128 weights. One plane has as many bits as
// TF32. Limit: DRAM; at 128 rows and with two planes also the tensor cores.

#include <opbench/gradients.cuh>
#include <opbench/streamed_weights.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

// dout_planes [PLANES][m][PITCH], weight [n][k], parts [BLOCKS + TILES][128][128]
extern "C" __global__ void __launch_bounds__(384, 1)
    linear_dgrad_wgmma_streamed(const __grid_constant__ TensorMap map_dout,
                                const __grid_constant__ TensorMap map_weight, const int* __restrict__ dout_exponents,
                                float* __restrict__ parts, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    StreamedWeights<PLANES, true>::multiply(shared, &map_dout, &map_weight, dout_exponents, parts,
                                            StreamK(m, k, (n + 63) / 64, gridDim.x), m);
}

extern "C" __global__ void __launch_bounds__(256)
    linear_dgrad_split_dout(const float* __restrict__ dout, __half* __restrict__ planes, int* __restrict__ exponents,
                            int m, int n) {
    let_next_launch_start();
    split_rows<PLANES>(dout, planes, exponents, m, n, PITCH);
}

// other (out) and dx [m][k]
extern "C" __global__ void __launch_bounds__(256)
    linear_dgrad_add_parts(const float* parts,
#if OTHER
                           const float* __restrict__ other,
#endif
                           float* __restrict__ dx, int m, int n, int k, int blocks) {
#if !OTHER
    const float* other = nullptr;
#endif
    wait_for_launches_before();
    StreamK(m, k, (n + 63) / 64, blocks).add(parts, m, k, [&](const float (&sum)[4], int row, int column) {
        const size_t at = (size_t)row * k + column;
        finish_vector<EPILOGUE>(dx + at, sum, OTHER ? other + at : nullptr);
    });
}
