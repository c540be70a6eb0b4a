// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// tile      = { m = "TILE", n = "TILE" }
// supports  = { triangle = ["upper", "lower"] }
// requires  = ["n <= 1000000"]
// define    = { UPPER = "triangle == 'upper'", ALIGNED = "n % (8 if PRODUCT == 'bf16' else 4) == 0" }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "triangular_matmul_mma"
// grid   = ["cdiv(n, TILE) * cdiv(n, TILE)"]
// block  = ["32 * (TILE // WM) * (TILE // WN)"]
// shared = "STAGES * 2 * TILE * 128"
//
// [variant.mma_bf16]
// title     = "bf16 mma.sync with a cp.async pipeline, over the steps inside both triangles"
// builds_on = "register_tile"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// define    = { WM = "64" }
// tune      = { TILE = [128, 64], WN = [64, 32], STAGES = [3, 4] }
// where     = ["(TILE, WN, STAGES) in ((128, 64, 3), (64, 32, 4))"]
//
// [variant.mma_3xtf32]
// title     = "3xTF32 (mma.sync): operands split into two TF32 numbers, three products, float32 accuracy"
// builds_on = "register_tile"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["n >= 4"]
// define    = { WM = "64 if TILE == 128 else 32" }
// tune      = { TILE = [128, 64], WN = [32], STAGES = [4] }
// ///
//
// The main loop of a dense product, but only over those k that can differ from zero for a tile: for "upper", from the
// tile's first row to its last column. Tiles are numbered by diagonals, those with the most steps first. b is stored by
// rows and transposed on its way to registers. Limit: mma.sync, which reaches about 62 % of the rate of Hopper's tensor
// cores; for small matrices the tile in the corner, whose steps run one after the other. After CUTLASS 2's multistage
// kernels and its triangular rank updates; H. Ootomo and R. Yokota, Recovering single precision accuracy from Tensor
// Cores (2022).

#include <opbench/epilogue.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef Block<P, TILE, TILE, WM, WN, STAGES> Tile;
typedef P::T T;

struct Place {
    int row, column;  // of a tile, in units of tiles
    bool zero;
};
// Return the tile of a block: first the diagonals of the triangle, beginning at its corner, then the tiles outside of
// the triangle.
__device__ __forceinline__ Place place_of(int index, int tiles) {
    const int inside = tiles * (tiles + 1) / 2;
    const bool zero = index >= inside;
    if (zero) index -= inside;
    int diagonal = (int)((sqrtf(8.0f * index + 1.0f) - 1.0f) / 2.0f);  // diagonals have 1, 2, 3 … tiles
    while (diagonal * (diagonal + 1) / 2 > index) --diagonal;          // because the square root is rounded
    while ((diagonal + 1) * (diagonal + 2) / 2 <= index) ++diagonal;
    const int near = index - diagonal * (diagonal + 1) / 2, far = near + tiles - 1 - diagonal;
    return UPPER != zero ? Place{near, far, zero} : Place{far, near, zero};
}

// a, b, out [n][n]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    triangular_matmul_mma(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int n) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Place place = place_of(blockIdx.x, (n + TILE - 1) / TILE);
    const int m0 = place.row * TILE, n0 = place.column * TILE;
    const ColumnsWarp<Tile> warp;
    Tile::Sums sum = {};
    if (!place.zero) {
        const int first = UPPER ? m0 : n0, end = min(n, (UPPER ? n0 : m0) + TILE);
        RowsAndColumns<Tile, ALIGNED, ALIGNED> operands(shared, a, b, m0, n0, n, n, n, first, end);
        multiply_stages<Tile>(sum, shared, (end - first + Tile::bk - 1) / Tile::bk, warp, operands);
    }
    store_tile<Tile, false, false>(sum, shared, out, (const T*)nullptr, m0 + warp.m, n0 + warp.n, n, n);
}
