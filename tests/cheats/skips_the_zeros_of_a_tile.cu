// /// opbench
// operator = "matmul"
// title    = "loads only what is inside and leaves the rest of the tile"
// launch   = [{ kernel = "skips_the_zeros_of_a_tile", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"] }]
// ///
//
// At the edges the products take elements that nobody stored; sizes that 16 divides are right.
// expect: skips_the_zeros_of_a_tile.cu:18: uninitialised-shared: read of uninitialised shared memory: 4 bytes
extern "C" __global__ void skips_the_zeros_of_a_tile(const float* a, const float* b, float* out, int m,
                                        int n, int k) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        if (row < m && base + x < k) left[y][x] = a[row * k + base + x];
        if (base + y < k && col < n) right[y][x] = b[(base + y) * n + col];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
