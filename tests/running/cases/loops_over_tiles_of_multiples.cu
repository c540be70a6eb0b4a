// /// opbench
// operator = "matmul"
// requires = ["m % 32 == 0", "n % 32 == 0", "k % 32 == 0"]
// launch = [{ kernel = "tiles", grid = ["n // 32", "m // 32"], block = ["32", "32"] }]
// ///
__global__ void tiles(const float* a, const float* b, float* out, int m, int n, int k) {
    __shared__ float left[32][32], right[32][32];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, col = blockIdx.x * 32 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 32) {
        left[y][x] = a[row * k + base + x];
        right[y][x] = b[(base + y) * n + col];
        __syncthreads();
        for (int i = 0; i < 32; ++i) sum += left[y][i] * right[i][x];
        // BUG: no __syncthreads() before the next pass overwrites the tiles
    }
    out[row * n + col] = sum;
}
