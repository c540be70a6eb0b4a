// /// opbench
// title     = "8-bit mma.sync (m16n8k32) with a cp.async pipeline and ldmatrix"
// builds_on = "shared_tile"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// product   = "fp8"
// tile      = { m = "BM", n = "BN", k = 128 }
// tune      = { BM = [128, 64], BN = [128, 64], WM = [64, 32] }
// where     = ["(BM, BN, WM) in ((128, 128, 64), (64, 128, 32), (64, 64, 32))"]
// supports  = { scaling = ["tensor", "row", "block"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// requires  = ["cdiv(m, BM) * cdiv(n, BN) < 2 ** 31", "scaling != 'block' or WM == 32"]
// compute_capability = "8.9"
//
// [define]
// A_E5M2   = "a_dtype == 'e5m2'"
// B_E5M2   = "b_dtype == 'e5m2'"
// BY_ROW   = "scaling == 'row'"
// BY_BLOCK = "scaling == 'block'"
// ALIGNED  = "k % 16 == 0"
//
// [[launch]]
// kernel = "scaled_matmul_mma"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM // WM * BN"]
// shared = "4 * (BM + BN) * 128"
// ///
//
// The tensor cores multiply 8-bit floats as they are stored; nothing is converted. A fragment has the layout of a
// 16-bit fragment with two 8-bit elements instead of one, so ldmatrix and the loop of the bf16 variants work unchanged.
// Scales of rows are applied to the sums once. Scales of blocks change every 128 elements of k, which is one step;
// after each step the sums are scaled and added in float32. Limit: Hopper has these instructions only for wgmma, and
// executes mma.sync of 8-bit floats by converting them to f16 in registers; the warps have small tiles to leave
// registers for that. Idea of the promotion: DeepSeek-V3 Technical Report (2024).

#include <opbench/byte_mma.cuh>
#include <opbench/epilogue.cuh>
#include <opbench/matrix_rows.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef ByteProduct<float_bytes(A_E5M2, B_E5M2), float, BY_BLOCK> P;
typedef Block<P, BM, BN, WM, 32, 4> Tile;

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(Tile::threads)
    scaled_matmul_mma(const unsigned char* __restrict__ a, const unsigned char* __restrict__ b,
                      const float* __restrict__ scale_a, const float* __restrict__ scale_b,
                      __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tiles_m = (m + BM - 1) / BM;
    const int m0 = blockIdx.x % tiles_m * BM, n0 = blockIdx.x / tiles_m * BN;  // neighbouring blocks share rows of b
    MatrixRows<Tile, ALIGNED> operands(shared, a, b, m0, n0, m, n, k, 0, k);
    const Warp<Tile> warp;
    const int steps = (k + 127) / 128;
    const int row0 = m0 + warp.m + threadIdx.x % 32 / 4, col0 = n0 + warp.n + threadIdx.x % 4 * 2;
    Tile::Sums sum = {};
    // Call use(indices of the sum, scale(row, column)) for each sum of the thread; indices after the last row or column
    // use the last scale.
    const auto for_each_sum = [&](const auto& scale, const auto& use) {
#pragma unroll
        for (int i = 0; i < Tile::tm * Tile::tn * 4; ++i) {
            const int mi = i / 4 / Tile::tn, ni = i / 4 % Tile::tn, e = i % 4;
            use(mi, ni, e, scale(min(row0 + mi * 16 + e / 2 * 8, m - 1), min(col0 + ni * 8 + e % 2, n - 1)));
        }
    };
#if BY_BLOCK
    Tile::Sums total = {};
    int step = 0;
    multiply_parts<Tile, false, false>(sum, shared, steps, warp, operands, [&] {
        const float* of_a = scale_a + (size_t)step * m;
        // all columns of a warp are in one block
        const float of_b = scale_b[min(n0 + warp.n, n - 1) / 128 * steps + step];
        for_each_sum([&](int row, int) { return of_a[row] * of_b; },
                     [&](int mi, int ni, int e, float scale) {
                         total[mi][ni][e] += sum[mi][ni][e] * scale;
                         sum[mi][ni][e] = 0.0f;
                     });
        ++step;
    });
    auto& result = total;
#else
    multiply_stages<Tile>(sum, shared, steps, warp, operands);
    for_each_sum([&](int row, int column) { return scale_a[BY_ROW ? row : 0] * scale_b[BY_ROW ? column : 0]; },
                 [&](int mi, int ni, int e, float scale) { sum[mi][ni][e] *= scale; });
    auto& result = sum;
#endif
    store_tile<Tile, false, false>(result, shared, out, (const unsigned char*)nullptr, m0 + warp.m, n0 + warp.n, m, n);
}
