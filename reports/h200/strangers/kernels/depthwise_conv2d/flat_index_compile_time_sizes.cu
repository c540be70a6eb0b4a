// /// opbench
// title     = "all sizes are constants of the compiler"
// builds_on = "flat_index"
// mechanism = ["compile_time_sizes"]
//
// [define]
// BATCH    = "n"
// CHANNELS = "c"
// IN_H     = "h"
// IN_W     = "w"
// OUT_H    = "p"
// OUT_W    = "q"
// KERNEL_H = "r"
// KERNEL_W = "s"
// STRIDE   = "stride"
// PADDING  = "padding"
// DILATION = "dilation"
//
// [[launch]]
// kernel = "depthwise_kernel"
// grid   = ["cdiv(n * c * p * q, 256)"]
// block  = ["256"]
// args   = ["image", "weight", "out"]
// ///
__global__ void depthwise_kernel(const float* input, const float* weight, float* output) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= BATCH * CHANNELS * OUT_H * OUT_W) return;

    int ow = idx % OUT_W;
    int oh = (idx / OUT_W) % OUT_H;
    int c = (idx / (OUT_W * OUT_H)) % CHANNELS;
    int b = idx / (OUT_W * OUT_H * CHANNELS);

    float value = 0.0f;
    for (int kh = 0; kh < KERNEL_H; kh++) {
        for (int kw = 0; kw < KERNEL_W; kw++) {
            int ih = oh * STRIDE - PADDING + kh * DILATION;
            int iw = ow * STRIDE - PADDING + kw * DILATION;
            if (ih >= 0 && ih < IN_H && iw >= 0 && iw < IN_W) {
                int input_idx = ((b * CHANNELS + c) * IN_H + ih) * IN_W + iw;
                int weight_idx = (c * KERNEL_H + kh) * KERNEL_W + kw;
                value += input[input_idx] * weight[weight_idx];
            }
        }
    }
    output[idx] = value;
}
