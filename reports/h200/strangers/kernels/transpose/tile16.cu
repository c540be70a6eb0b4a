// /// opbench
// title  = "a 16x16 tile in shared memory"
// launch = [{ kernel = "transposeTiled", grid = ["cdiv(cols, 16)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
#define TILE_DIM 16

__global__ void transposeTiled(const float* in, float* out, int height, int width) {
    __shared__ float tile[TILE_DIM][TILE_DIM];

    int x = blockIdx.x * TILE_DIM + threadIdx.x;
    int y = blockIdx.y * TILE_DIM + threadIdx.y;
    if (x < width && y < height) tile[threadIdx.y][threadIdx.x] = in[y * width + x];

    __syncthreads();

    x = blockIdx.y * TILE_DIM + threadIdx.x;
    y = blockIdx.x * TILE_DIM + threadIdx.y;
    if (x < height && y < width) out[y * height + x] = tile[threadIdx.x][threadIdx.y];
}
