// /// opbench
// operator = "matmul"
// title    = "counts the tiles of k by k / 16"
// launch   = [{ kernel = "stops_at_whole_tiles", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"] }]
// ///
//
// The products behind the last whole tile are left out; right where 16 divides k.
// expect: wrong-result: out[
extern "C" __global__ void stops_at_whole_tiles(const float* a, const float* b, float* out, int m,
                                        int n, int k) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        if (base + 16 > k) break;
        left[y][x] = row < m && base + x < k ? a[row * k + base + x] : 0.0f;
        right[y][x] = base + y < k && col < n ? b[(base + y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
