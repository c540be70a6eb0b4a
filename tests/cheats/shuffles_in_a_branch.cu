// /// opbench
// operator = "sum"
// title    = "a full mask inside a branch that eight lanes take"
// launch   = [{ kernel = "shuffles_in_a_branch", grid = ["1"], block = ["256"] }]
// ///
//
// The other lanes never come to that shuffle: they wait at the barrier behind it.
// expect: shuffles_in_a_branch.cu:19: warp-mask
extern "C" __global__ void shuffles_in_a_branch(const float* x, float* out, int n) {
    __shared__ float sums[8];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    __syncthreads();
    if (t < 8) {
        own = sums[t];
        for (int distance = 4; distance > 0; distance /= 2) own += __shfl_xor_sync(0xffffffffu, own, distance);
        if (t == 0) sums[0] = own;
    }
    __syncthreads();
    if (t == 255) out[0] = sums[0];
}
