// /// opbench
// title  = "one block per channel of an image"
//
// [[launch]]
// kernel = "maxpool_plane"
// grid   = ["n * c"]
// block  = ["16", "16"]
// args   = ["x", "out", "h", "w", "p", "q", "window", "stride", "padding"]
// ///
__global__ void maxpool_plane(const float* in, float* out, int H, int W, int OH, int OW, int K, int S, int P) {
    in += (size_t)blockIdx.x * H * W;
    out += (size_t)blockIdx.x * OH * OW;
    for (int oy = threadIdx.y; oy < OH; oy += blockDim.y) {
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
