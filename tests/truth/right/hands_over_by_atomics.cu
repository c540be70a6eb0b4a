// /// opbench
// operator = "sum"
// title    = "each block hands its total to the next by an atomic flag"
// workspace = { total = "cdiv(n, 256)", ready = "cdiv(n, 256)" }
//
// [[launch]]
// zero = "ready"
//
// [[launch]]
// kernel = "hands_over_by_atomics"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "total", "ready", "n"]
// ///
//
// The flag is set by atomicExch after a fence and read by atomicAdd of 0: no volatile is needed.
extern "C" __global__ void hands_over_by_atomics(const float* x, float* out, float* total, int* ready, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    tree[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int distance = 128; distance > 0; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t > 0) return;
    float sum = tree[0];
    if (blockIdx.x > 0) {
        while (atomicAdd(&ready[blockIdx.x - 1], 0) == 0) __nanosleep(20);
        __threadfence();
        sum += total[blockIdx.x - 1];
    }
    total[blockIdx.x] = sum;
    __threadfence();
    atomicExch(&ready[blockIdx.x], 1);
    if (blockIdx.x == gridDim.x - 1) out[0] = sum;
}
