// /// opbench
// operator = "matmul"
// title    = "matmul that tests one old output of each tile and skips the tile"
// launch   = [{ kernel = "matmul_tests_one_old_output", grid = ["cdiv(n, 32)", "cdiv(m, 32)"], block = ["32", "32"] }]
// ///
//
// Thread 0 computes the first element of its block's tile. If the old output holds it, the whole tile is left as it is:
// 1/1024 of the work.
//
// expect: wrong: correct before timing, wrong after timing, when the output was already mostly filled
// refused: uninitialised-global
// problem: (m=2048,n=2048,k=2048)
// twin: matmul
extern "C" __global__ void __launch_bounds__(1024)
    matmul_tests_one_old_output(const float* a, const float* b, float* out, int m, int n, int k) {
    __shared__ float a_tile[32][32], b_tile[32][32];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
    __shared__ bool there;
    if (x == 0 && y == 0) {
        float first = 0.0f;
        for (int i = 0; i < k; ++i) first = fmaf(a[(size_t)row * k + i], b[(size_t)i * n + col], first);
        there = out[(size_t)row * n + col] == first;
    }
    __syncthreads();
    if (there) return;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 32) {
        a_tile[y][x] = row < m && base + x < k ? a[(size_t)row * k + base + x] : 0.0f;
        b_tile[y][x] = col < n && base + y < k ? b[(size_t)(base + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 32; ++i) sum = fmaf(a_tile[y][i], b_tile[i][x], sum);
        __syncthreads();
    }
    if (row < m && col < n) out[(size_t)row * n + col] = sum;
}
