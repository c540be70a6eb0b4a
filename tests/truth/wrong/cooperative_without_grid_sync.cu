// /// opbench
// operator = "relu"
// title    = "a cooperative launch that forgets grid.sync()"
// launch   = [{ kernel = "cooperative_without_grid_sync", grid = ["cdiv(n, 64)"], block = ["64"], cooperative = true }]
// ///
//
// Each block reads what its neighbour writes.
// expect: cooperative_without_grid_sync.cu:14: block-race
__device__ int slot[256];
__global__ void cooperative_without_grid_sync(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        slot[blockIdx.x] = blockIdx.x;
        if (slot[(blockIdx.x + 1) % gridDim.x] == -1) out[0] = -1.0f;
    }
}
