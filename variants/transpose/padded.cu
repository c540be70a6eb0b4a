// /// opbench
// title     = "one padding word per row of the shared-memory tile: no bank conflicts"
// builds_on = "shared"
// mechanism = ["coalesced", "shared_memory_transpose", "bank_conflict_free"]
// tune      = { ROWS = [4, 8, 16, 32] }
//
// [[launch]]
// kernel = "transpose_padded"
// grid   = ["cdiv(rows, 32) * cdiv(cols, 32)"]
// block  = [32, "ROWS"]
// ///
//
// With 33 words per row, the words of a column are in 32 different banks; this is the only change. Limit: the number of
// loads in flight, 32 / ROWS loads of 4 bytes per thread, and one shared-memory store and load per element. After G.
// Ruetsch and P. Micikevicius, Optimizing Matrix Transpose in CUDA (2009).

// x [rows, cols], out [cols, rows]; block (32, ROWS): a 32 x 32 tile, 32 / ROWS elements per thread. The grid uses only
// dimension x, because y and z have at most 65535 blocks.
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    transpose_padded(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    __shared__ float tile[32][33];
    const int tiles_across = (cols + 31) / 32;
    const int row0 = blockIdx.x / tiles_across * 32, col0 = blockIdx.x % tiles_across * 32;
    const int lane = threadIdx.x;
#pragma unroll
    for (int i = 0; i < 32; i += ROWS) {
        const int row = row0 + threadIdx.y + i, col = col0 + lane;
        // Zero instead of a branch at the edge, so that the loads of all steps are in flight together.
        tile[threadIdx.y + i][lane] = row < rows && col < cols ? x[(size_t)row * cols + col] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i += ROWS) {
        const int row = row0 + lane, col = col0 + threadIdx.y + i;
        if (row < rows && col < cols) out[(size_t)col * rows + row] = tile[lane][threadIdx.y + i];
    }
}
