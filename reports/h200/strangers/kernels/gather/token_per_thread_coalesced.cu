// /// opbench
// title     = "an embedding with a block per token: neighbouring threads copy neighbouring elements"
// builds_on = "token_per_thread"
// mechanism = ["coalesced"]
// supports  = { batches = ["one"] }
//
// [[launch]]
// kernel = "embed"
// grid   = ["rows"]
// block  = ["256"]
// args   = ["data", "order", "batch", "features", "rows"]
// ///
__global__ void embed(const float* table, const int* ids, float* out, int n_dim, int n_ids) {
    int token = blockIdx.x;
    int id = ids[token];
    for (int i = threadIdx.x; i < n_dim; i += blockDim.x) out[token * n_dim + i] = table[id * n_dim + i];
}
