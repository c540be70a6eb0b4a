// /// opbench
// operator = "copy"
// title    = "a block's threads exchange numbers through a workspace, without a barrier"
// workspace = { stage = "256 * cdiv(n, 256)" }
// launch   = [{ kernel = "exchanges_through_global_memory_at_once", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "stage", "n"] }]
// ///
//
// Another warp may not have written yet.
// expect: exchanges_through_global_memory_at_once.cu:13: global-race|uninitialised
extern "C" __global__ void exchanges_through_global_memory_at_once(const float* x, float* out, float* stage, int n) {
    const int t = threadIdx.x, i = blockIdx.x * 256 + t, j = blockIdx.x * 256 + 255 - t;
    stage[i] = i < n ? x[i] : 0.0f;
    if (j < n) out[j] = stage[j];
}
