// /// opbench
// title     = "TF32 accuracy by f16 wgmma at twice the rate: separate kernels round and scale each row"
// builds_on = "wgmma_persistent_tf32"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "overlapped_launch", "converted_ahead",
// ]
// product   = "f16"
// precision = "tf32"
// supports  = { b_order = ["row", "col"] }
// requires  = [
//     "k % 4 == 0 and n % (4 if B_ROWS else 2) == 0",
//     "B_PITCH * max(n, k) < 2 ** 31 and A_PITCH * m < 2 ** 31",
// ]
// compute_capability = "9.0a"
// tune      = { BN = [256, 128, 192], GROUP = [8, 16] }
// where     = ["GROUP == 8 or BN == 256"]
//
// [define]
// B_ROWS  = "b_order == 'row'"
// A_PITCH = "cdiv(k, 8) * 8"
// B_PITCH = "cdiv(n, 8) * 8 if B_ROWS else A_PITCH"
// STAGES  = "196608 // ((128 + BN) * 128)"
// PARTS   = "min(cdiv(k, 4), cdiv(1056, cdiv(n, 1024)))"
//
// [workspace]
// a_half      = "cdiv(m * A_PITCH, 2)"
// b_half      = "cdiv((k if B_ROWS else n) * B_PITCH, 2)"
// a_exponents = "m"
// b_exponents = "cdiv(n, 4) * 4"
// b_largest   = "cdiv(n, 4) * 4"
//
// [tensor_maps]
// map_a = { tensor = "a_half", type = "f16", dims = ["k", "m"], strides = ["2 * A_PITCH"], box = [64, 128] }
//
// [tensor_maps.map_b]
// tensor  = "b_half"
// type    = "f16"
// dims    = ["n if B_ROWS else k", "k if B_ROWS else n"]
// strides = ["2 * B_PITCH"]
// box     = [64, "64 if B_ROWS else BN"]
//
// [[launch]]
// zero = "b_largest"
//
// [[launch]]
// kernel = "round_rows"
// grid   = ["cdiv(n, 1024)", "PARTS", 2]
// block  = [256]
// args   = ["a", "b", "a_half", "b_half", "a_exponents", "b_exponents", "b_largest", "m", "n", "k"]
//
// [[launch]]
// kernel = "round_columns"
// grid   = ["cdiv(n, 1024) if B_ROWS else 1", "PARTS if B_ROWS else 1"]
// block  = [256]
// args   = ["b", "b_largest", "b_half", "b_exponents", "n", "k"]
// programmatic = true
//
// [[launch]]
// kernel = "matmul_wgmma_f16"
// grid   = ["min(sm_count, cdiv(m, 128) * cdiv(n, BN))"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 + 16)"
// args   = ["map_a", "map_b", "a_exponents", "b_exponents", "out", "m", "n", "k"]
// programmatic = true
// ///
//
// f16 has as many significant bits as TF32, and f16 products run at twice the rate. Its range is smaller, so each row
// of a and each column of b is scaled by a power of two: elements down to 2^-28 of the largest of their row keep all
// bits. The extra pass over a and b is worth its time from a size of 2048 on. b stored by rows needs no transpose,
// because wgmma reads 16-bit operands in both orders. The first kernel rounds a and finds the largest element of each
// column of b; the second one rounds b, which it reads from L2 where it fits. Each launch starts while the previous one
// ends. Tiles of 128 x 256 as in the previous variant. Limit: power; at 2048 the extra passes.

#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

typedef Ring<STAGES, (128 + BN) * 128> Stages;
constexpr bool by_n = B_ROWS != 0;

// a_half [m][A_PITCH], b_half [k][B_PITCH] (B_ROWS) or [n][B_PITCH], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    matmul_wgmma_f16(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                     const int* a_exponents, const int* b_exponents, float* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const Tiles<128, BN, GROUP> scheduler(m, n);
    const int steps = (k + 63) / 64;
    ring.start();
    wait_for_launches_before();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        scheduler.for_each_tile([&](TilePlace tile) {
            ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                load(a, &map_a, full, step * 64, tile.row);
                if constexpr (!by_n) load(a + 128 * 128, &map_b, full, step * 64, tile.column);
#pragma unroll
                for (int part = 0; part < (by_n ? BN : 0); part += 64)
                    load(a + (128 + part) * 128, &map_b, full, tile.column + part, step * 64);
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int first = (threadIdx.x / 128 - 1) * 64;
        float sum[1][BN / 2];
        scheduler.for_each_tile([&](TilePlace tile) {
            ring.drain(steps, [&](int step, unsigned a) {
                multiply_stage<Format::f16, by_n>(sum, a + first * 128, a + 128 * 128, step > 0);
            });
            const int row = tile.row + first + threadIdx.x / 32 % 4 * 16;
#pragma unroll
            // in parts: for all columns at once, the exponents would take too many registers
            for (int part = 0; part < BN / 2; part += 32) {
                float (&d)[32] = reinterpret_cast<float (&)[32]>(sum[0][part]);
                scale_sums(d, a_exponents, b_exponents, row, tile.column + part * 2, m, n);
                store_pairs(d, out, row, tile.column + part * 2, m, n);
            }
        });
    }
}

// a [m][k] and b [n][k]: round and scale them; b [k][n]: only find the largest element of each column
extern "C" __global__ void __launch_bounds__(256)
    round_rows(const float* __restrict__ a, const float* __restrict__ b, __half* __restrict__ a_half,
               __half* __restrict__ b_half, int* __restrict__ a_exponents, int* __restrict__ b_exponents,
               unsigned* __restrict__ b_largest, int m, int n, int k) {
    let_next_launch_start();
    if (blockIdx.z == 0)
        split_rows<1>(a, a_half, a_exponents, m, k, A_PITCH);
    else if (by_n)
        find_columns(b, b_largest, k, n);
    else
        split_rows<1>(b, b_half, b_exponents, n, k, B_PITCH);
}
extern "C" __global__ void __launch_bounds__(256)
    round_columns(const float* __restrict__ b, const unsigned* b_largest, __half* __restrict__ b_half,
                  int* __restrict__ b_exponents, int n, int k) {
    let_next_launch_start();
    wait_for_launches_before();
    if (by_n) split_columns<1>(b, b_largest, b_half, b_exponents, k, n, B_PITCH);
}
