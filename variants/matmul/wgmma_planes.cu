// /// opbench
// title     = "wgmma with float32 accuracy: operands split into two f16 parts, scaled per row, three products"
// builds_on = "wgmma_persistent_tf32"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma",
//     "tensor_core", "operand_split", "warp_specialised", "persistent", "converted_ahead",
// ]
// product   = "f16x3"
// supports  = { b_order = ["row", "col"] }
// requires  = [
//     "k % 4 == 0 and n % (4 if B_ROWS else 2) == 0",
//     "B_PITCH * max(n, k) < 2 ** 31 and A_PITCH * m < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { GROUP = [8, 16] }
//
// [define]
// B_ROWS  = "b_order == 'row'"
// A_PITCH = "cdiv(k, 8) * 8"
// B_PITCH = "cdiv(n, 8) * 8 if B_ROWS else A_PITCH"
//
// [workspace]
// a_planes    = "m * A_PITCH"
// b_planes    = "(k if B_ROWS else n) * B_PITCH"
// a_exponents = "m"
// b_exponents = "cdiv(n, 4) * 4"
// b_largest   = "cdiv(n, 4) * 4"
//
// [tensor_maps.map_a]
// tensor  = "a_planes"
// type    = "f16"
// dims    = ["k", "m", 2]
// strides = ["2 * A_PITCH", "2 * A_PITCH * m"]
// box     = [64, 128, 2]
//
// [tensor_maps.map_b]
// tensor  = "b_planes"
// type    = "f16"
// dims    = ["n if B_ROWS else k", "k if B_ROWS else n", 2]
// strides = ["2 * B_PITCH", "2 * B_PITCH * (k if B_ROWS else n)"]
// box     = [64, "64 if B_ROWS else 128", "1 if B_ROWS else 2"]
//
// [[launch]]
// zero = "b_largest"
//
// [[launch]]
// kernel = "split_a"
// grid   = ["m"]
// block  = [256]
// args   = ["a", "a_planes", "a_exponents", "m", "k"]
//
// [[launch]]
// kernel = "find_b"
// grid   = ["cdiv(n, 1024) if B_ROWS else 1", "min(k, 64) if B_ROWS else 1"]
// block  = [256]
// args   = ["b", "b_largest", "n", "k"]
//
// [[launch]]
// kernel = "split_b"
// grid   = ["cdiv(n, 1024) if B_ROWS else n", "min(k, 64) if B_ROWS else 1"]
// block  = [256]
// args   = ["b", "b_largest", "b_planes", "b_exponents", "n", "k"]
//
// [[launch]]
// kernel = "matmul_wgmma_planes"
// grid   = ["min(sm_count, cdiv(m, 128) * cdiv(n, 128))"]
// block  = [384]
// shared = "3 * (65536 + 16)"
// args   = ["map_a", "map_b", "a_exponents", "b_exponents", "out", "m", "n", "k"]
// ///
//
// After each row is scaled into the range of f16, two f16 numbers represent 22 significant bits of a float. Three
// products of such numbers are as good as float32's, at a third of the rate of f16. (bf16 has three significant bits
// less and needs six products; f16 has twice the rate of TF32.) The tensor core truncates when it adds. So the sums of
// products of high parts start from zero every 64 k and are added in float, while the small products of the same stage
// run; those are 2^-11 as large and need no such care. Copies load both planes at once. The error is below that of
// cuBLAS's float32, at four times the rate. Limit: 192 sums per thread, so that tiles are 128 x 128; the passes that
// split, 35 to 50 us for a matrix of 4096 x 4096. After Ootomo and Yokota, Recovering single precision accuracy from
// Tensor Cores (2022).

#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int plane = 128 * 128;  // bytes of one plane of an operand's tile
typedef Ring<3, 4 * plane> Stages;
typedef Tiles<128, 128, GROUP> TileScheduler;

extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    matmul_wgmma_planes(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                        const int* __restrict__ a_exponents, const int* __restrict__ b_exponents,
                        float* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const TileScheduler scheduler(m, n);
    const int steps = (k + 63) / 64;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](TilePlace tile) {
            ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                load(a, &map_a, full, step * 64, tile.row, 0);
#if B_ROWS
                for (int part = 0; part < 4; ++part)  // of a plane, 64 columns
                    load(a + 2 * plane + part * 8192, &map_b, full, tile.column + part % 2 * 64, step * 64, part / 2);
#else
                load(a + 2 * plane, &map_b, full, step * 64, tile.column, 0);
#endif
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64;
        float total[64];
        scheduler.for_each_tile([&](TilePlace tile) {
            drain_planes<B_ROWS != 0>(ring, steps, first, total);
            const int row = tile.row + first + threadIdx.x / 32 % 4 * 16;
            scale_sums(total, a_exponents, b_exponents, row, tile.column, m, n);
            store_pairs(total, out, row, tile.column, m, n);
        });
    }
}

// a [m][k] by rows
extern "C" __global__ void __launch_bounds__(256)
    split_a(const float* __restrict__ a, __half* __restrict__ planes, int* __restrict__ exponents, int m, int k) {
    split_rows(a, planes, exponents, m, k, A_PITCH);
}
// Find the largest magnitude in each column of b [k][n]; a b [n][k] does not need this kernel.
extern "C" __global__ void __launch_bounds__(256)
    find_b(const float* __restrict__ b, unsigned* __restrict__ largest, int n, int k) {
    if (B_ROWS) find_columns(b, largest, k, n);
}
extern "C" __global__ void __launch_bounds__(256)
    split_b(const float* __restrict__ b, const unsigned* __restrict__ largest, __half* __restrict__ planes,
            int* __restrict__ exponents, int n, int k) {
    if (B_ROWS)
        split_columns(b, largest, planes, exponents, k, n, B_PITCH);
    else
        split_rows(b, planes, exponents, n, k, B_PITCH);
}
