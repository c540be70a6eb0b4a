// /// opbench
// operator = "relu"
// title    = "a block writes its number again while its neighbour may be reading it"
// launch   = [{ kernel = "writes_again_before_the_next_grid_sync", grid = ["cdiv(n, 64)"], block = ["64"], cooperative = true }]
// ///
//
// The second grid.sync() is missing.
// expect: writes_again_before_the_next_grid_sync.cu:18: block-race
#include <cooperative_groups.h>
__device__ int slot[256];
__global__ void writes_again_before_the_next_grid_sync(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) slot[blockIdx.x] = blockIdx.x;
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) {
        const int neighbour = (blockIdx.x + 1) % gridDim.x;
        if (slot[neighbour] != neighbour) out[0] = -1.0f;
    }
    if (threadIdx.x == 0) slot[blockIdx.x] = blockIdx.x + 1;
}
