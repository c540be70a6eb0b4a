// /// opbench
// operator = "sum"
// title    = "no barrier between the warps' sums and their total"
// launch   = [{ kernel = "reads_sums_of_warps_at_once", grid = ["1"], block = ["256"] }]
// ///
//
// The first warp adds up what the others may not have stored yet.
// expect: reads_sums_of_warps_at_once.cu:15: shared-race: write of 4 bytes
extern "C" __global__ void reads_sums_of_warps_at_once(const float* x, float* out, int n) {
    __shared__ float sums[8];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    if (t >= 32) return;
    own = t < 8 ? sums[t] : 0.0f;
    for (int distance = 4; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t == 0) out[0] = own;
}
