// /// opbench
// title     = "argmax with a block per row: neighbouring threads read neighbouring elements"
// builds_on = "argmax_row_per_thread"
// mechanism = ["coalesced"]
// supports  = { op = ["argmax"] }
// requires  = ["inner == 1"]
// launch    = [{ kernel = "argmax_kernel", grid = ["outer"], block = ["256"], args = ["x", "out", "outer", "axis"] }]
// ///

// Whether element (a, i) comes before (b, j): NaN first, then the larger value, then the smaller index.
__device__ bool before(float a, int i, float b, int j) {
    if (isnan(a) != isnan(b)) return isnan(a);
    if (a > b || a < b) return a > b;
    return i < j;
}

__global__ void argmax_kernel(const float* input, int* output, int batch, int dim) {
    __shared__ float values[256];
    __shared__ int indices[256];
    int b = blockIdx.x;

    float best = -INFINITY;
    int best_idx = 0x7fffffff;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float v = input[(size_t)b * dim + i];
        if (before(v, i, best, best_idx)) {
            best = v;
            best_idx = i;
        }
    }
    values[threadIdx.x] = best;
    indices[threadIdx.x] = best_idx;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) {
            int other = threadIdx.x + s;
            if (before(values[other], indices[other], values[threadIdx.x], indices[threadIdx.x])) {
                values[threadIdx.x] = values[other];
                indices[threadIdx.x] = indices[other];
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) output[b] = indices[0];
}
