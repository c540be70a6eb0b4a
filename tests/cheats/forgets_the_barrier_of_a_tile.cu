// /// opbench
// operator = "transpose"
// title    = "turns a tile in shared memory and never waits"
// launch   = [{ kernel = "forgets_the_barrier_of_a_tile", grid = ["cdiv(cols, 16)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
//
// The tile is read while other warps still fill it.
// expect: forgets_the_barrier_of_a_tile.cu:15: shared-race
extern "C" __global__ void forgets_the_barrier_of_a_tile(const float* x, float* out, int rows, int cols) {
    __shared__ float tile[16][17];
    const int col0 = blockIdx.x * 16, row0 = blockIdx.y * 16;
    const int row = row0 + threadIdx.y, col = col0 + threadIdx.x;
    tile[threadIdx.y][threadIdx.x] = row < rows && col < cols ? x[row * cols + col] : 0.0f;
    const int r = row0 + threadIdx.x, c = col0 + threadIdx.y;
    const float turned = tile[threadIdx.x][threadIdx.y];
    if (r < rows && c < cols) out[c * rows + r] = turned;
}
