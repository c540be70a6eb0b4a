// /// opbench
// operator = "sum"
// title    = "the last warp as before Volta: volatile and no __syncwarp()"
// launch   = [{ kernel = "forgets_syncwarp", grid = ["1"], block = ["256"] }]
// ///
//
// Lanes of a warp need not run in step, so a lane may read before its neighbour has written.
// expect: forgets_syncwarp.cu:23: shared-race: 
extern "C" __global__ void forgets_syncwarp(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    volatile float* last = tree;
    tree[t] = own;
    __syncthreads();
    for (int distance = 128; distance > 16; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t < 16) {
        last[t] += last[t + 16];
        last[t] += last[t + 8];
        last[t] += last[t + 4];
        last[t] += last[t + 2];
        last[t] += last[t + 1];
    }
    if (t == 0) out[0] = tree[0];
}
