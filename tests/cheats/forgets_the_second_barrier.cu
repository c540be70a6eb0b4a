// /// opbench
// operator = "matmul"
// title    = "waits for the tile to be full, but not for it to be read"
// launch   = [{ kernel = "forgets_the_second_barrier", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"] }]
// ///
//
// The next tile overwrites what slower warps still read.
// expect: forgets_the_second_barrier.cu:15: shared-race: write of 4 bytes
extern "C" __global__ void forgets_the_second_barrier(const float* a, const float* b, float* out, int m,
                                        int n, int k) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        left[y][x] = row < m && base + x < k ? a[row * k + base + x] : 0.0f;
        right[y][x] = base + y < k && col < n ? b[(base + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
