// /// opbench
// operator = "transpose"
// title    = "counts the columns of the tile from one"
// launch   = [{ kernel = "writes_right_of_its_tile", grid = ["cdiv(cols, 16)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
//
// Column 16 of a row is column 0 of the next; of the last row it lies behind the tile.
// expect: writes_right_of_its_tile.cu:12: out-of-bounds: write of 4 bytes at byte 1024 of shared array
extern "C" __global__ void writes_right_of_its_tile(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[16][16];
    const int col0 = blockIdx.x * 16, row0 = blockIdx.y * 16, row = row0 + threadIdx.y, col = col0 + threadIdx.x;
    if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x + 1] = x[row * cols + col];
    __syncthreads();
    const int r = row0 + threadIdx.x, c = col0 + threadIdx.y;
    if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.x][threadIdx.y + 1];
}
