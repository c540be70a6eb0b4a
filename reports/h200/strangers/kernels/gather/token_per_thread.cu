// /// opbench
// title    = "an embedding: each thread copies the row of one token"
// supports = { batches = ["one"] }
//
// [[launch]]
// kernel = "embed"
// grid   = ["cdiv(rows, 256)"]
// block  = ["256"]
// args   = ["data", "order", "batch", "features", "rows"]
// ///
__global__ void embed(const float* table, const int* ids, float* out, int n_dim, int n_ids) {
    int tid = blockIdx.x * blockDim.x + threadIdx.x;
    if (tid < n_ids) {
        int id = ids[tid];
        for (int i = 0; i < n_dim; i++) out[tid * n_dim + i] = table[id * n_dim + i];
    }
}
