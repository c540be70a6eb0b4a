// /// opbench
// operator = "relu"
// title    = "the honest twin with a workspace"
// workspace = { seen = "cdiv(n, 256)" }
// launch   = [{ kernel = "relu_with_a_workspace", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Each block writes its first element into the workspace before it reads it.
//
// expect: right
// problem: (n=65536)
extern "C" __global__ void relu_with_a_workspace(const float* x, float* out, float* seen, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (threadIdx.x == 0) seen[blockIdx.x] = x[blockIdx.x * 256];
    __syncthreads();
    if (i < n) out[i] = fmaxf(threadIdx.x == 0 ? seen[blockIdx.x] : x[i], 0.0f);
}
