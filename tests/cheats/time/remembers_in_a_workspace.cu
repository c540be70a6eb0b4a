// /// opbench
// operator = "relu"
// title    = "a fingerprint of the input in a workspace"
// workspace = { seen = "cdiv(n, 256)" }
// launch   = [{ kernel = "remembers_in_a_workspace", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A workspace holds what the launch before left in it, unless somebody clears it.
//
// expect: wrong: correct before timing, wrong after timing, when the output was already mostly filled
// refused: uninitialised-global
// problem: (n=65536)
// twin: relu_with_a_workspace
extern "C" __global__ void remembers_in_a_workspace(const float* x, float* out, float* seen, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float first = x[blockIdx.x * 256];
    const bool known = seen[blockIdx.x] == first;
    __syncthreads();
    if (known) return;
    if (threadIdx.x == 0) seen[blockIdx.x] = first;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
