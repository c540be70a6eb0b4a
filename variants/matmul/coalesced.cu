// /// opbench
// title     = "one thread per output, threadIdx.x along the columns: b and out are coalesced"
// builds_on = "naive_row_x"
// mechanism = ["coalesced"]
// tune      = { ROWS = [8, 4, 32] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "matmul_coalesced"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The only change is that the two indices are swapped. Now a warp reads 128 contiguous bytes of b (4 sectors; the previous
// variant's load of a accesses 32), all its threads read the same word of a, and out is written in full lines. Limit: two loads per
// multiply-add, so the load/store unit is busy long before the arithmetic; each value of b is fetched again by every
// row of the block. After the CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".

// a [m, k], b [k, n], out [m, n]; block (32, ROWS): x is the column, y the row.
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    matmul_coalesced(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                     int k) {
    const int col = blockIdx.x * 32 + threadIdx.x;
    const int row = blockIdx.y * ROWS + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + col];
    out[(size_t)row * n + col] = sum;
}
