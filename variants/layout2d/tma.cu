// /// opbench
// title     = "tiles of up to 64 KB by TMA, one copy in and one out, turned in place"
// builds_on = "vectorised"
// supports  = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
// requires  = ["rows * SIZE % 16 == 0 and cols * SIZE % 16 == 0", "cdiv(rows, ROWS) <= 65535 and n <= 65535"]
// compute_capability = "9.0"
//
// [define]
// SIZE = "2 if dtype == 'bf16' else 4"
// ROWS = "64 if rows <= 64 else 256 if cols <= 64 else 128"
// COLS = "256 if rows <= 64 else 64 if cols <= 64 else 128"
//
// [tensor_maps]
// map_x   = { tensor = "x", dims = ["cols", "rows", "n"], box = ["COLS", "ROWS", 1], swizzle = "none" }
// map_out = { tensor = "out", dims = ["rows", "cols", "n"], box = ["ROWS", "COLS", 1], swizzle = "none" }
//
// [[launch]]
// kernel = "layout2d_tma"
// grid   = ["cdiv(cols, COLS)", "cdiv(rows, ROWS)", "n"]
// block  = [256]
// shared = "ROWS * COLS * SIZE"
// args   = ["map_x", "map_out"]
// ///
//
// transpose/tma for each image: the copy engine brings a tile as it lies and takes it away, clipped at the edges, and the
// other blocks of the multiprocessor turn theirs meanwhile. With few channels a tile has all of them, of 256 pixels, so that
// one side of it is a single stretch of memory. Pieces of 16-bit elements are eight by eight, turned by byte permutes.
// Limit: HBM, of which reads and writes in turn cost a part.

#include <opbench/turned.cuh>
using namespace opbench;

// x [n][rows][cols], out [n][cols][rows]
extern "C" __global__ void __launch_bounds__(256)
    layout2d_tma(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_out) {
    extern __shared__ __align__(1024) uint4 tile[];
    const int column = blockIdx.x * COLS, row = blockIdx.y * ROWS, image = blockIdx.z;
    TurnedTile<SIZE, ROWS, COLS>::move(
        tile, [&](unsigned to, unsigned arrived) { load(to, &map_x, arrived, column, row, image); },
        [&](unsigned from) { store(&map_out, from, row, column, image); });
}
