// /// opbench
// title  = "one thread per output, found by four divisions of a flat index; all sizes are arguments"
//
// [[launch]]
// kernel = "depthwise_kernel"
// grid   = ["cdiv(n * c * p * q, 256)"]
// block  = ["256"]
// args   = ["image", "weight", "out", "n", "c", "h", "w", "p", "q", "r", "s", "stride", "padding", "dilation"]
// ///
__global__ void depthwise_kernel(const float* input, const float* weight, float* output, int batch, int channels,
                                 int in_h, int in_w, int out_h, int out_w, int kernel_h, int kernel_w, int stride,
                                 int padding, int dilation) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int total = batch * channels * out_h * out_w;
    if (idx >= total) return;

    int ow = idx % out_w;
    int oh = (idx / out_w) % out_h;
    int c = (idx / (out_w * out_h)) % channels;
    int b = idx / (out_w * out_h * channels);

    float value = 0.0f;
    for (int kh = 0; kh < kernel_h; kh++) {
        for (int kw = 0; kw < kernel_w; kw++) {
            int ih = oh * stride - padding + kh * dilation;
            int iw = ow * stride - padding + kw * dilation;
            if (ih >= 0 && ih < in_h && iw >= 0 && iw < in_w) {
                int input_idx = ((b * channels + c) * in_h + ih) * in_w + iw;
                int weight_idx = (c * kernel_h + kh) * kernel_w + kw;
                value += input[input_idx] * weight[weight_idx];
            }
        }
    }
    output[idx] = value;
}
