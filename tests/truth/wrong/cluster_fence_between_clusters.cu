// /// opbench
// operator = "relu"
// title    = "a message behind fence.acq_rel.cluster for a block of another cluster"
// launch   = [{ kernel = "cluster_fence_between_clusters", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Each block is a cluster of its own, which the fence's scope does not leave.
// expect: cluster_fence_between_clusters.cu:21: block-race
__device__ int ready, message;
__device__ int taken[1024];
__global__ void cluster_fence_between_clusters(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        message = 7;
        asm volatile("fence.acq_rel.cluster;" ::: "memory");
        atomicExch(&ready, 1);
    } else if (atomicAdd(&ready, 0)) {
        __threadfence();
        taken[blockIdx.x % 1024] = message;
    }
}
