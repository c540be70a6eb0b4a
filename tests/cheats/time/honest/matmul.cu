// /// opbench
// operator = "matmul"
// title    = "the honest twin: a matmul of 32×32 tiles in shared memory"
// launch   = [{ kernel = "matmul", grid = ["cdiv(n, 32)", "cdiv(m, 32)"], block = ["32", "32"] }]
// ///
//
// Each block computes one tile of the output.
//
// expect: right
// problem: (m=2048,n=2048,k=2048)
extern "C" __global__ void __launch_bounds__(1024)
    matmul(const float* a, const float* b, float* out, int m, int n, int k) {
    __shared__ float a_tile[32][32], b_tile[32][32];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
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
