// /// opbench
// operator = "matmul"
// title    = "__syncwarp() where the whole block must wait"
// launch   = [{ kernel = "waits_only_for_its_warp", grid = ["cdiv(n, 16)", "cdiv(m, 16)"], block = ["16", "16"] }]
// ///
//
// A row of the tile is filled by one warp and read by all.
// expect: waits_only_for_its_warp.cu:18: shared-race: read of 4 bytes
extern "C" __global__ void waits_only_for_its_warp(const float* a, const float* b, float* out, int m,
                                        int n, int k) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 16) {
        left[y][x] = row < m && base + x < k ? a[row * k + base + x] : 0.0f;
        right[y][x] = base + y < k && col < n ? b[(base + y) * n + col] : 0.0f;
        __syncwarp();
        for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    if (row < m && col < n) out[row * n + col] = sum;
}
