// /// opbench
// title     = "four tiles between two barriers"
// builds_on = "tile16"
// mechanism = ["fewer_barriers"]
// launch    = [{ kernel = "transposeTiled", grid = ["cdiv(cols, 64)", "cdiv(rows, 16)"], block = ["16", "16"] }]
// ///
#define TILE_DIM 16
#define TILES 4

__global__ void transposeTiled(const float* in, float* out, int height, int width) {
    __shared__ float tile[TILES][TILE_DIM][TILE_DIM];

    for (int t = 0; t < TILES; t++) {
        int x = (blockIdx.x * TILES + t) * TILE_DIM + threadIdx.x;
        int y = blockIdx.y * TILE_DIM + threadIdx.y;
        if (x < width && y < height) tile[t][threadIdx.y][threadIdx.x] = in[y * width + x];
    }

    __syncthreads();

    for (int t = 0; t < TILES; t++) {
        int x = blockIdx.y * TILE_DIM + threadIdx.x;
        int y = (blockIdx.x * TILES + t) * TILE_DIM + threadIdx.y;
        if (x < height && y < width) out[y * height + x] = tile[t][threadIdx.x][threadIdx.y];
    }
}
