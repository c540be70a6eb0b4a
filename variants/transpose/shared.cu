// /// opbench
// title     = "32×32 shared-memory tile, transposed: loads and stores are coalesced"
// builds_on = "naive_read_strided"
// mechanism = ["coalesced", "shared_memory_transpose"]
// tune      = { ROWS = [4, 8, 16, 32] }
//
// [[launch]]
// kernel = "transpose_shared"
// grid   = ["cdiv(rows, 32) * cdiv(cols, 32)"]
// block  = [32, "ROWS"]
// ///
//
// The kernel reads a tile by rows and writes rows of the result; it transposes the tile in shared memory. There a
// stride costs no sectors, but causes bank conflicts: the 32 lanes read one column of the tile, and with 32 words per
// row the whole column is in one bank, so the read is replayed 32 times. Limit: those conflicts. After G. Ruetsch and
// P. Micikevicius, Optimizing Matrix Transpose in CUDA (2009).

// x [rows, cols], out [cols, rows]; block (32, ROWS): a 32 x 32 tile, 32 / ROWS elements per thread. The grid has one
// dimension because the others end at 65535.
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    transpose_shared(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    __shared__ float tile[32][32];
    const int tiles_across = (cols + 31) / 32;
    const int row0 = blockIdx.x / tiles_across * 32, col0 = blockIdx.x % tiles_across * 32;
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 32; i += ROWS) {
        const int row = row0 + threadIdx.y + i, col = col0 + lane;
        // A zero rather than a branch at the edge, so that the loads of all steps are under way together.
        tile[threadIdx.y + i][lane] = row < rows && col < cols ? x[(size_t)row * cols + col] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i += ROWS) {
        const int row = row0 + lane, col = col0 + threadIdx.y + i;
        if (row < rows && col < cols) out[(size_t)col * rows + row] = tile[lane][threadIdx.y + i];  // 32-way conflict
    }
}
