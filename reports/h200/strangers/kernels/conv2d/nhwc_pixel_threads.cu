// /// opbench
// title    = "a kernel for nchw whose indices were changed to nhwc: neighbouring threads have neighbouring pixels"
// supports = { layout = ["nhwc"] }
// launch   = [{ kernel = "conv_forward", grid = ["cdiv(q, 16)", "cdiv(p, 16)", "n * k"], block = ["16", "16"] }]
// ///
__global__ void conv_forward(const float* x, const float* w, float* y, int N, int C, int H, int W, int K, int R, int S,
                             int stride, int pad) {
    int H_out = (H + 2 * pad - R) / stride + 1;
    int W_out = (W + 2 * pad - S) / stride + 1;
    int ow = blockIdx.x * blockDim.x + threadIdx.x;
    int oh = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z / K;
    int k = blockIdx.z % K;
    if (ow >= W_out || oh >= H_out) return;

    float acc = 0.0f;
    for (int c = 0; c < C; c++) {
        for (int r = 0; r < R; r++) {
            for (int s = 0; s < S; s++) {
                int ih = oh * stride - pad + r;
                int iw = ow * stride - pad + s;
                if (ih >= 0 && ih < H && iw >= 0 && iw < W) {
                    acc += x[((n * H + ih) * W + iw) * C + c] * w[((k * R + r) * S + s) * C + c];
                }
            }
        }
    }
    y[((n * H_out + oh) * W_out + ow) * K + k] = acc;
}
