// /// opbench
// operator = "matmul"
// title    = "off by one: i <= 16 over a tile of 16"
// launch   = [{ kernel = "reads_one_column_too_many_of_a_tile", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"] }]
// ///
//
// Row y reads the first element of row y + 1, and the last row what lies behind the array.
// expect: reads_one_column_too_many_of_a_tile.cu:18: out-of-bounds: read of 4 bytes at byte 1024 of shared array
extern "C" __global__ void reads_one_column_too_many_of_a_tile(const float* a, const float* b, float* out, int m,
                                        int n, int k) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        left[y][x] = row < m && base + x < k ? a[row * k + base + x] : 0.0f;
        right[y][x] = base + y < k && col < n ? b[(base + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i <= 16; ++i) sum += left[y][i] * (i < 16 ? right[i][x] : 0.0f);
        __syncthreads();
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
