// /// opbench
// operator = "relu"
// title    = "the first warp counts at the barrier where the others only wait"
// launch   = [{ kernel = "waits_for_sums_of_two_kinds", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Barriers with and without a result must not meet: both are barrier 0 of the block.
// expect: waits_for_sums_of_two_kinds.cu:15: divergent-barrier: threads wait for different results
extern "C" __global__ void waits_for_sums_of_two_kinds(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    int positive = 0;
    if (threadIdx.x < 32) {
        positive = __syncthreads_count(i < n && x[i] > 0.0f);
    } else {
        __syncthreads();
    }
    if (i < n) out[i] = positive < 0 || x[i] <= 0.0f ? 0.0f : x[i];
}
