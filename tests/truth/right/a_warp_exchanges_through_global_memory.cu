// /// opbench
// operator = "copy"
// title    = "the lanes of a warp exchange numbers through a workspace, with __syncwarp()"
// workspace = { stage = "256 * cdiv(n, 256)" }
// launch   = [{ kernel = "a_warp_exchanges_through_global_memory", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "stage", "n"] }]
// ///
//
// __syncwarp() orders memory among the lanes that take part in it.
extern "C" __global__ void a_warp_exchanges_through_global_memory(const float* x, float* out, float* stage, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x, j = i ^ 5;
    stage[i] = i < n ? x[i] : 0.0f;
    __syncwarp();
    if (j < n) out[j] = stage[j];
}
