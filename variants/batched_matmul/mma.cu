// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "BM", n = "BN" }
// supports  = { a_order = ["row", "col"], b_order = ["row", "col"] }
// requires  = ["batch * cdiv(m, BM) * cdiv(n, BN) < 2 ** 31"]
// compute_capability = "8.0"
//
// [define]
// A_COLUMNS = "a_order == 'col'"
// B_COLUMNS = "b_order == 'col'"
// LANES     = "8 if PRODUCT == 'bf16' else 4"
// M_ALIGNED = "m % LANES == 0"
// N_ALIGNED = "n % LANES == 0"
// K_ALIGNED = "k % LANES == 0"
//
// [[launch]]
// kernel = "batched_matmul_mma"
// grid   = ["batch * cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["32 * (BM // WM) * (BN // WN)"]
// shared = "STAGES * (BM + BN) * 128"
//
// [variant.mma_bf16]
// title     = "bf16 mma.sync and cp.async; ldmatrix transposes the operands whose memory order needs it"
// builds_on = "register_tile"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { WM = "64" }
// tune      = { BM = [128, 64], BN = [256, 128, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(BM, BN, WN, STAGES) in ((128, 256, 64, 3), (128, 128, 64, 3), (64, 64, 32, 4))"]
//
// [variant.mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "register_tile"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// supports  = { b_order = ["col", "row"] }
// requires  = ["k >= 4", "not (A_COLUMNS and B_COLUMNS)"]
// define    = { WM = "64 if BM == 128 else 32" }
// tune      = { BM = [128, 64], BN = [128, 64], WN = [32], STAGES = [4] }
// where     = ["BM == BN"]
// ///
//
// A tensor core multiplies a 16 x 16 by a 16 x 8 matrix in one instruction. An operand that is contiguous along k is
// read from shared memory by ldmatrix. An operand that is contiguous along m or n is copied in that order, and ldmatrix
// transposes it, so no order needs a separate pass. cp.async copies run ahead by several stages. Consecutive blocks
// compute tiles of the same matrix, so L2 holds its operands. Floats are split into two TF32 numbers each, in
// registers. Limit: mma.sync, which reaches about 62 % of the rate of Hopper's tensor cores. After CUTLASS 2's
// multistage kernels for Ampere; H. Ootomo and R. Yokota, Recovering single precision accuracy from Tensor Cores
// (2022).

#include <opbench/depth_rows.cuh>
#include <opbench/epilogue.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, BM, BN, WM, WN, STAGES> Tile;
typedef P::T T;

#if A_COLUMNS && B_COLUMNS
// Fill a stage with a [depth][m] and b [n][depth].
struct DepthAndRows {
    static constexpr bool pads_with_zeros = true;  // copies zeros after the end of the depth
    unsigned char* const memory;
    DepthRows<Tile, WideA<Tile>, M_ALIGNED> a;
    Rows<Tile, BN, K_ALIGNED> b;
    int left;  // the remaining depth, from this thread's chunk of b on

    __device__ __forceinline__ DepthAndRows(unsigned char* memory, const T* a, const T* b, int m0, int n0, int m, int n,
                                            int k)
        : memory(memory), a(a, m0, m, 0, k), b(b, n0, n, k, 0), left(k - (int)threadIdx.x % chunks * Tile::vec) {}
    __device__ __forceinline__ void operator()(int slot) {
        unsigned char* const stage = memory + slot * Tile::stage_bytes;
        a.copy(stage);
        b.copy(stage + BM * row_bytes + swizzled_offset(threadIdx.x / chunks, threadIdx.x % chunks), left);
        left -= Tile::bk;
    }
};
// A warp that reads fragments of such a stage: a as DepthWarp does, b as Warp does.
struct Lanes : Warp<Tile> {
    typedef InOrder Order;
    DepthWarp<Tile> by_depth;

    __device__ __forceinline__ void fetch(unsigned stage, int slice, Tile::A& a, Tile::B& b) const {
        const unsigned from = stage + slice * 2 * Tile::vec * WideA<Tile>::in_row * 16;
#pragma unroll
        for (int i = 0; i < Tile::tm; ++i) load_matrices_transposed(a[i], from + (by_depth.a_at ^ i * 32));
#pragma unroll
        for (int j = 0; j < Tile::tn / 2; ++j) load_matrices(b[j], stage + b_lane[slice] + j * 16 * row_bytes);
    }
};
#elif A_COLUMNS
typedef DepthRows<Tile, WideA<Tile>, M_ALIGNED> RowsOfA;
typedef DepthRows<Tile, WideB<Tile>, N_ALIGNED> RowsOfB;
typedef DepthWarp<Tile> Lanes;
#elif B_COLUMNS
typedef MatrixRows<Tile, K_ALIGNED> Operands;
struct Lanes : Warp<Tile> { typedef InOrder Order; };
#else
typedef RowsAndColumns<Tile, K_ALIGNED, N_ALIGNED> Operands;
struct Lanes : ColumnsWarp<Tile> { typedef InOrder Order; };
#endif

// a [batch][m][k] or [batch][k][m] (A_COLUMNS), b [batch][k][n] or [batch][n][k] (B_COLUMNS), out [batch][m][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    batched_matmul_mma(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int batch, int m, int n,
                       int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tiles_m = (m + BM - 1) / BM, tiles = tiles_m * ((n + BN - 1) / BN);
    const int matrix = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const int m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;  // neighbouring blocks share the columns of b
    a += (size_t)matrix * m * k;
    b += (size_t)matrix * k * n;
    out += (size_t)matrix * m * n;
#if A_COLUMNS && B_COLUMNS
    DepthAndRows operands(shared, a, b, m0, n0, m, n, k);
#elif A_COLUMNS
    BothByDepth<Tile, RowsOfA, RowsOfB> operands(shared, RowsOfA(a, m0, m, 0, k), RowsOfB(b, n0, n, 0, k));
#else
    Operands operands(shared, a, b, m0, n0, m, n, k, 0, k);
#endif
    const Lanes warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, (k + Tile::bk - 1) / Tile::bk, warp, operands);
    store_tile<Tile, false, false, Lanes::Order>(sum, shared, out, (const T*)nullptr, m0 + warp.m, n0 + warp.n, m, n);
}
