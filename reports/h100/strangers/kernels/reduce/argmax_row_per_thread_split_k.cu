// /// opbench
// title     = "argmax: 16 threads of different blocks scan a part of each row, a second kernel joins the parts"
// builds_on = "argmax_row_per_thread"
// mechanism = ["split_k"]
// supports  = { op = ["argmax"] }
// requires  = ["inner == 1"]
// workspace = { values = "16 * outer", indices = "16 * outer" }
//
// [[launch]]
// kernel = "argmax_part"
// grid   = ["cdiv(outer, 256)", "16"]
// block  = ["256"]
// args   = ["x", "values", "indices", "outer", "axis"]
//
// [[launch]]
// kernel = "argmax_join"
// grid   = ["cdiv(outer, 256)"]
// block  = ["256"]
// args   = ["values", "indices", "out", "outer"]
// ///
__global__ void argmax_part(const float* input, float* values, int* indices, int batch, int dim) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= batch) return;
    int part = (dim + gridDim.y - 1) / gridDim.y;
    int first = blockIdx.y * part, last = min(dim, first + part);

    float best = -INFINITY;
    int best_idx = min(first, dim - 1);
    for (int i = first; i < last; i++) {
        float v = input[(size_t)b * dim + i];
        if (v > best || (isnan(v) && !isnan(best))) {
            best = v;
            best_idx = i;
        }
    }
    values[blockIdx.y * batch + b] = best;
    indices[blockIdx.y * batch + b] = best_idx;
}

__global__ void argmax_join(const float* values, const int* indices, int* output, int batch) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= batch) return;

    float best = values[b];
    int best_idx = indices[b];
    for (int part = 1; part < 16; part++) {
        float v = values[part * batch + b];
        if (v > best || (isnan(v) && !isnan(best))) {
            best = v;
            best_idx = indices[part * batch + b];
        }
    }
    output[b] = best_idx;
}
