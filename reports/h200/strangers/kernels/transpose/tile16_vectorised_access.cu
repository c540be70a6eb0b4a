// /// opbench
// title     = "16 bytes per thread: a tile of 16 rows and 64 columns"
// builds_on = "tile16"
// mechanism = ["vectorised_access"]
// requires  = ["rows % 4 == 0", "cols % 4 == 0"]
// launch    = [{ kernel = "transposeTiled", grid = ["cdiv(cols, 64)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
#define TILE_DIM 16

__global__ void transposeTiled(const float* in, float* out, int height, int width) {
    __shared__ float tile[TILE_DIM][4 * TILE_DIM];

    int x = blockIdx.x * 4 * TILE_DIM + 4 * threadIdx.x;
    int y = blockIdx.y * TILE_DIM + threadIdx.y;
    if (x < width && y < height) {
        *(float4*)&tile[threadIdx.y][4 * threadIdx.x] = *(const float4*)&in[y * width + x];
    }

    __syncthreads();

    int t = threadIdx.y * TILE_DIM + threadIdx.x;
    int row = t % 4 * 4, col = t / 4;
    x = blockIdx.y * TILE_DIM + row;
    y = blockIdx.x * 4 * TILE_DIM + col;
    if (x < height && y < width) {
        *(float4*)&out[y * height + x] =
            make_float4(tile[row][col], tile[row + 1][col], tile[row + 2][col], tile[row + 3][col]);
    }
}
