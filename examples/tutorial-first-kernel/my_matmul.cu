// /// opbench
// operator = "matmul"
// title    = "tiles of a and of b in shared memory"
// tune     = { TILE = [32] }
// launch   = [{ kernel = "my_matmul", grid = ["cdiv(n, TILE)", "cdiv(m, TILE)"], block = ["TILE", "TILE"] }]
// ///
//
// A block computes TILE x TILE outputs, so that each number it loads is used TILE times.
extern "C" __global__ void my_matmul(const float* a, const float* b, float* out, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y;
    const int col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += TILE) {
        a_tile[y][x] = row < m && base + x < k ? a[row * k + base + x] : 0.0f;
        b_tile[y][x] = base + y < k && col < n ? b[(base + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a_tile[y][i] * b_tile[i][x];
        __syncthreads();
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
