// /// opbench
// title     = "a warp per output: neighbouring threads read neighbouring elements of its two rows"
// builds_on = "flat_index"
// mechanism = ["coalesced"]
// launch    = [{ kernel = "linear_forward", grid = ["cdiv(m * n, 8)"], block = ["32", "8"] }]
// ///
__global__ void linear_forward(const float* input, const float* weight, const float* bias, float* output, int batch,
                               int out_features, int in_features) {
    int idx = blockIdx.x * blockDim.y + threadIdx.y;
    if (idx < batch * out_features) {
        int b = idx / out_features;
        int o = idx % out_features;
        float sum = 0.0f;
        for (int i = threadIdx.x; i < in_features; i += 32) {
            sum += input[b * in_features + i] * weight[o * in_features + i];
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
        if (threadIdx.x == 0) output[idx] = sum + bias[o];
    }
}
