// /// opbench
// title     = "8-bit mma.sync (m16n8k32) with a cp.async pipeline and ldmatrix"
// builds_on = "dp4a"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "async_copy",
//     "tensor_core",
// ]
// product   = "s8"
// tile      = { m = "BM", n = "BN", k = 128 }
// tune      = { BM = [128, 64], BN = [256, 128, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(BM, BN, WN, STAGES) in ((128, 256, 64, 3), (128, 128, 64, 3), (64, 64, 32, 4))"]
// requires  = ["cdiv(m, BM) * cdiv(n, BN) < 2 ** 31"]
// define.ALIGNED = "k % 16 == 0"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "int8_matmul_mma"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["32 * (BM // 64) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
// ///
//
// A tensor core multiplies 16 x 32 by 32 x 8 elements in one instruction of a warp. A fragment has the layout of a
// 16-bit fragment with two 8-bit elements instead of one, so ldmatrix and the loop of the bf16 variants work unchanged.
// Sums are 32-bit integers and are stored as they are. Limit: mma.sync; Hopper reaches its full rate only with wgmma.

#include <opbench/byte_mma.cuh>
#include <opbench/matrix_rows.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Block<ByteProduct<Bytes::s8, int>, BM, BN, 64, WN, STAGES> Floats;
struct Tile : Floats { typedef int Sums[Floats::tm][Floats::tn][4]; };

// a [m][k], b [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    int8_matmul_mma(const signed char* __restrict__ a, const signed char* __restrict__ b, int* __restrict__ out, int m,
                    int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tiles_m = (m + BM - 1) / BM;
    const int m0 = blockIdx.x % tiles_m * BM, n0 = blockIdx.x / tiles_m * BN;  // neighbouring blocks share rows of b
    MatrixRows<Tile, ALIGNED> operands(shared, reinterpret_cast<const unsigned char*>(a),
                                       reinterpret_cast<const unsigned char*>(b), m0, n0, m, n, k, 0, k);
    const Warp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (k + 127) / 128, warp, operands);
    const int row0 = m0 + warp.m + threadIdx.x % 32 / 4, col0 = n0 + warp.n + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::tm * Tile::tn * 2; ++i) {  // pairs of neighbouring columns
        const int mi = i / 2 / Tile::tn, ni = i / 2 % Tile::tn, row = row0 + mi * 16 + i % 2 * 8, col = col0 + ni * 8;
        if (row >= m || col >= n) continue;
        int* to = out + (size_t)row * n + col;
        const int2 pair = make_int2(sum[mi][ni][i % 2 * 2], sum[mi][ni][i % 2 * 2 + 1]);
        if (n % 2 == 0) {
            *reinterpret_cast<int2*>(to) = pair;
        } else {
            to[0] = pair.x;
            if (col + 1 < n) to[1] = pair.y;
        }
    }
}
