// /// opbench
// operator = "transpose"
// title    = "shifts the tile by a row"
// launch   = [{ kernel = "writes_above_its_tile", grid = ["cdiv(cols, 16)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
//
// Row -1 lies before the tile.
// expect: writes_above_its_tile.cu:12: out-of-bounds: write of 4 bytes at byte -64 of shared array 'tile'
extern "C" __global__ void writes_above_its_tile(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[16][16];
    const int col0 = blockIdx.x * 16, row0 = blockIdx.y * 16, row = row0 + threadIdx.y, col = col0 + threadIdx.x;
    if (row < rows && col < cols) tile[(int)threadIdx.y - 1][threadIdx.x] = x[row * cols + col];
    __syncthreads();
    const int r = row0 + threadIdx.x, c = col0 + threadIdx.y;
    if (r < rows && c < cols) out[c * rows + r] = tile[(int)threadIdx.x - 1][threadIdx.y];
}
