// /// opbench
// title     = "the rows of a plane are split over 32 blocks"
// builds_on = "block_per_plane"
// mechanism = ["split_k"]
//
// [[launch]]
// kernel = "maxpool_plane"
// grid   = ["n * c", "32"]
// block  = ["16", "16"]
// args   = ["x", "out", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
__global__ void maxpool_plane(const float* in, float* out, int H, int W, int OH, int OW, int K, int S, int P) {
    in += (size_t)blockIdx.x * H * W;
    out += (size_t)blockIdx.x * OH * OW;
    for (int oy = blockIdx.y * blockDim.y + threadIdx.y; oy < OH; oy += gridDim.y * blockDim.y) {
        for (int ox = threadIdx.x; ox < OW; ox += blockDim.x) {
            float m = -INFINITY;
            for (int i = 0; i < K; i++) {
                for (int j = 0; j < K; j++) {
                    int y = oy * S - P + i;
                    int x = ox * S - P + j;
                    if (y < 0 || y >= H || x < 0 || x >= W) continue;
                    float v = in[y * W + x];
                    if (v > m) m = v;
                }
            }
            out[oy * OW + ox] = m;
        }
    }
}
