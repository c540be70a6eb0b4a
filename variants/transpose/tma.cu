// /// opbench
// title     = "TMA loads and stores each tile, which is transposed in place, 4×4 elements in registers at a time"
// builds_on = "vectorised"
// mechanism = ["shared_memory_transpose", "bank_conflict_free", "tma"]
// tune      = { ROWS = [64, 128], COLS = [64, 128] }
// where     = ["ROWS == COLS"]
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
// TMA loads and stores a tile, clipped at the edges, so no thread waits for it with registers in use; meanwhile the
// other blocks of the multiprocessor transpose their tiles in place. Rows need neither padding nor a swizzle: eight
// lanes process 4x4 squares along a diagonal, whose float4 are in different banks both by rows and by columns. Limit:
// memory bandwidth. This variant adds the last hundredth of it: 93 % of a copy's rate at 16384 x 16384 on an H200.
// Larger tiles (128 x 128, 64 x 256), bands of tiles and hints for L2 are no faster, because rows are read and columns
// written in DRAM.

#include <opbench/barrier.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int per_row = COLS / 4, per_column = ROWS / 4, pieces = per_row * per_column / 256;  // 4x4 of a thread

// x [rows][cols], out [cols][rows]
extern "C" __global__ void __launch_bounds__(256)
    transpose_tma(const __grid_constant__ TensorMap map_x, const __grid_constant__ TensorMap map_out, int cols) {
    extern __shared__ __align__(1024) float4 tile[];
    __shared__ unsigned long long barrier;
    const unsigned arrived = shared_address(&barrier);
    const int across = (cols + COLS - 1) / COLS;
    const int row0 = (int)blockIdx.x / across * ROWS, col0 = (int)blockIdx.x % across * COLS;
    if (threadIdx.x == 0) {
        barrier_init(arrived, 1);
        barrier_init_fence();
        arrive_expect(arrived, ROWS * COLS * 4);
        load(shared_address(tile), &map_x, arrived, col0, row0);
    }
    __syncthreads();
    wait_for(arrived, 0);
    float4 v[pieces][4];
    const auto each = [&](const auto& work) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int e = i * 256 + threadIdx.x, l = e % 8, square = e / 64;  // of 8 x 8 pieces
            work(v[i], square / (per_row / 8) * 8 + l, square % (per_row / 8) * 8 + (l ^ e / 8 % 8));
        }
    };
    each([&](float4(&piece)[4], int row, int column) {
#pragma unroll
        for (int j = 0; j < 4; ++j) piece[j] = tile[(row * 4 + j) * per_row + column];
    });
    __syncthreads();
    each([&](const float4(&p)[4], int row, int column) {
        float4* to = tile + column * 4 * per_column + row;
        to[0] = make_float4(p[0].x, p[1].x, p[2].x, p[3].x);
        to[per_column] = make_float4(p[0].y, p[1].y, p[2].y, p[3].y);
        to[2 * per_column] = make_float4(p[0].z, p[1].z, p[2].z, p[3].z);
        to[3 * per_column] = make_float4(p[0].w, p[1].w, p[2].w, p[3].w);
    });
    fence_async();
    __syncthreads();
    if (threadIdx.x > 0) return;
    store(&map_out, shared_address(tile), row0, col0);
    commit_stores();
    wait_for_stores<0>();
}
