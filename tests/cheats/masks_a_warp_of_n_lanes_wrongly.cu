// /// opbench
// operator = "sum"
// title    = "leaves the last lane out of the mask of n lanes"
// launch   = [{ kernel = "masks_a_warp_of_n_lanes_wrongly", grid = ["1"], block = ["32"] }]
// ///
//
// (1 << n - 1) - 1 names one lane too few; 32 or more elements are right.
// expect: masks_a_warp_of_n_lanes_wrongly.cu:15: warp-mask
extern "C" __global__ void masks_a_warp_of_n_lanes_wrongly(const float* x, float* out, int n) {
    const unsigned mask = n >= 32 ? ~0u : (1u << (n - 1)) - 1u;
    if (threadIdx.x >= n) return;
    float own = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) own += x[i];
    float sum = 0.0f;
    for (int lane = 0; lane < min(n, 32); ++lane) sum += __shfl_sync(mask, own, lane);
    if (threadIdx.x == 0) out[0] = sum;
}
