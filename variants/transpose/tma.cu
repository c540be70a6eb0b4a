// /// opbench
// title     = "tiles of 64 KB by TMA, one copy in and one out; 4×4 turned in registers in between"
// builds_on = "vectorised"
// tune      = { ROWS = [128, 64, 256], COLS = [128, 64, 256] }
// where     = ["(ROWS, COLS) in ((128, 128), (64, 64), (64, 256), (256, 64))"]
// requires  = ["rows % 4 == 0 and cols % 4 == 0"]
// compute_capability = "9.0"
//
// [tensor_maps]
// map_x   = { tensor = "x", box = ["COLS", "ROWS"], swizzle = "none" }
// map_out = { tensor = "out", box = ["ROWS", "COLS"], swizzle = "none" }
//
// [[launch]]
// kernel = "transpose_tma"
// grid   = ["cdiv(rows, ROWS) * cdiv(cols, COLS)"]
// block  = [256]
// shared = "ROWS * COLS * 4"
// args   = ["map_x", "map_out", "cols"]
// ///
//
// What the rung below loses is DRAM's pages: it reads and writes 256 bytes of a row at a time. A tile four times as large
// has 512 on both sides, and no thread waits with its registers for it: the copy engine brings it as it lies and takes
// it away, clipped at the edges, while the two other blocks of the multiprocessor turn theirs. Its rows are not padded and
// need no swizzle: eight lanes take 4x4 pieces along a diagonal, whose float4 lie in different banks by rows and by
// columns alike. A tile is turned in place. Limit: memory bandwidth, of which reads and writes in turn cost a part.

#include <opbench/turned.cuh>
using namespace opbench;

// x [rows][cols], out [cols][rows]
extern "C" __global__ void __launch_bounds__(256)
    transpose_tma(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_out, int cols) {
    extern __shared__ __align__(1024) uint4 tile[];
    const int across = (cols + COLS - 1) / COLS;
    const int row = (int)blockIdx.x / across * ROWS, column = (int)blockIdx.x % across * COLS;
    TurnedTile<4, ROWS, COLS>::move(
        tile, [&](unsigned to, unsigned arrived) { load(to, &map_x, arrived, column, row); },
        [&](unsigned from) { store(&map_out, from, row, column); });
}
