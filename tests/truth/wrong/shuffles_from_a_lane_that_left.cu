// /// opbench
// operator = "copy"
// title    = "a broadcast from lane 0, which has left"
// launch   = [{ kernel = "shuffles_from_a_lane_that_left", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Lane 0 copies its own number and returns before the others read it.
// expect: shuffles_from_a_lane_that_left.cu:14: warp-mask
extern "C" __global__ void shuffles_from_a_lane_that_left(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float own = i < n ? x[i] : 0.0f;
    if (i < n) out[i] = own;
    if (threadIdx.x % 32 == 0) return;
    const float first = __shfl_sync(0xffffffffu, own, 0);
    if (first > 1e30f && i < n) out[i] = first;
}
