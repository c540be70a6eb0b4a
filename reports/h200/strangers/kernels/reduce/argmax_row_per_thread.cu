// /// opbench
// title    = "argmax: each thread scans one row"
// supports = { op = ["argmax"] }
// requires = ["inner == 1"]
// launch   = [{ kernel = "argmax_kernel", grid = ["cdiv(outer, 256)"], block = ["256"], args = ["x", "out", "outer", "axis"] }]
// ///
__global__ void argmax_kernel(const float* input, int* output, int batch, int dim) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= batch) return;

    float best = input[(size_t)b * dim];
    int best_idx = 0;
    for (int i = 1; i < dim; i++) {
        float v = input[(size_t)b * dim + i];
        if (v > best || (isnan(v) && !isnan(best))) {
            best = v;
            best_idx = i;
        }
    }
    output[b] = best_idx;
}
