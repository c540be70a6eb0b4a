// /// opbench
// title  = "one thread per output of a layer, found by dividing a flat index"
// launch = [{ kernel = "linear_forward", grid = ["cdiv(m * n, 256)"], block = ["256"] }]
// ///
__global__ void linear_forward(const float* input, const float* weight, const float* bias, float* output, int batch,
                               int out_features, int in_features) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < batch * out_features) {
        int b = idx / out_features;
        int o = idx % out_features;
        float sum = bias[o];
        for (int i = 0; i < in_features; ++i) {
            sum += input[b * in_features + i] * weight[o * in_features + i];
        }
        output[idx] = sum;
    }
}
