// /// opbench
// operator = "transpose"
// title    = "writes the columns of a tile of 32 by 32"
// launch   = [{ kernel = "turns_a_tile_without_padding", grid = ["cdiv(cols, 32)", "cdiv(rows, 32)"], block = ["32", "32"] }]
// ///
//
// A column lies in one bank: 32 wavefronts where one would do.
// expect: turns_a_tile_without_padding.cu:13: bank conflicts: each 4-byte shared store request takes 32.0 wavefronts where 1.0
// at: (rows=64,cols=64)
extern "C" __global__ void turns_a_tile_without_padding(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[32][32];
    const int col0 = blockIdx.x * 32, row0 = blockIdx.y * 32, row = row0 + threadIdx.y, col = col0 + threadIdx.x;
    if (row < rows && col < cols) tile[threadIdx.x][threadIdx.y] = x[row * cols + col];
    __syncthreads();
    const int r = row0 + threadIdx.x, c = col0 + threadIdx.y;
    if (r < rows && c < cols) out[c * rows + r] = tile[threadIdx.y][threadIdx.x];
}
