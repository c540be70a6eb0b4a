// /// opbench
// operator = "sum"
// title    = "each block hands its total to the next by a volatile flag, with no fence between"
// workspace = { total = "cdiv(n, 32)", ready = "cdiv(n, 32)" }
//
// [[launch]]
// zero = "ready"
//
// [[launch]]
// kernel = "hands_over_without_a_fence"
// grid = ["cdiv(n, 32)"]
// block = ["32"]
// args = ["x", "out", "total", "ready", "n"]
// ///
//
// The flag may be seen before the total.
// expect: hands_over_without_a_fence.cu:27: block-race
extern "C" __global__ void hands_over_without_a_fence(const float* x, float* out, float* total, volatile int* ready,
                                                      int n) {
    float own = 0.0f;
    const int t = threadIdx.x, i = blockIdx.x * 32 + t;
    if (i < n) own = x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t > 0) return;
    if (blockIdx.x > 0) {
        while (ready[blockIdx.x - 1] == 0) {}
        own += total[blockIdx.x - 1];
    }
    total[blockIdx.x] = own;
    ready[blockIdx.x] = 1;
    if (blockIdx.x == gridDim.x - 1) out[0] = own;
}
