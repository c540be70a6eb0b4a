// /// opbench
// operator = "maxpool2d"
// title    = "loads the inside of its tile and not the halo"
// requires = ["window == 3", "stride == 1", "padding == 1"]
// launch   = [{ kernel = "leaves_the_halo_unset", grid = ["cdiv(w, 16)", "cdiv(h, 16)", "n * c"], block = ["16", "16"] }]
// ///
//
// Windows at the borders of a tile take what nobody stored.
// expect: leaves_the_halo_unset.cu:18: uninitialised-shared: read of uninitialised shared memory: 4 bytes
extern "C" __global__ void leaves_the_halo_unset(const float* x, float* out, int n, int c, int h, int w, int window,
                                                 int stride, int padding) {
    __shared__ float tile[18][18];
    const int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    const bool inside = row < h && col < w;
    tile[threadIdx.y + 1][threadIdx.x + 1] = inside ? x[(blockIdx.z * h + row) * w + col] : __int_as_float(0xff800000);
    __syncthreads();
    float largest = __int_as_float(0xff800000);
    for (int i = 0; i < 9; ++i) largest = fmaxf(largest, tile[threadIdx.y + i / 3][threadIdx.x + i % 3]);
    if (inside) out[(blockIdx.z * h + row) * w + col] = largest;
}
