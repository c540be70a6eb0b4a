// /// opbench
// operator = "sum"
// title    = "the last warp's steps as before Volta, in a helper"
// launch   = [{ kernel = "a_helper_steps_without_syncwarp", grid = ["1"], block = ["64"] }]
// ///
//
// The helper's line and that of its caller are told.
// expect: a_helper_steps_without_syncwarp.cu:10: shared-race
__device__ void fold(volatile float* last, int t, int distance) {
    last[t] += last[t + distance];
}
extern "C" __global__ void a_helper_steps_without_syncwarp(const float* x, float* out, int n) {
    __shared__ float tree[64];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 64) own += x[i];
    tree[t] = own;
    __syncthreads();
    if (t >= 32) return;
    fold(tree, t, 32);
    if (t < 16) fold(tree, t, 16);
    if (t < 8) fold(tree, t, 8);
    if (t < 4) fold(tree, t, 4);
    if (t < 2) fold(tree, t, 2);
    if (t < 1) fold(tree, t, 1);
    if (t == 0) out[0] = tree[0];
}
