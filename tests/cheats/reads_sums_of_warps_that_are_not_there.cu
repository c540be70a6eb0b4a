// /// opbench
// operator = "sum"
// title    = "lets 32 lanes add up the sums of 8 warps"
// launch   = [{ kernel = "reads_sums_of_warps_that_are_not_there", grid = ["1"], block = ["256"] }]
// ///
//
// Off the end of the array: only BLOCK / 32 lanes have a sum to read.
// expect: reads_sums_of_warps_that_are_not_there.cu:18: out-of-bounds: read of 4 bytes at byte 32 of shared array
extern "C" __global__ void reads_sums_of_warps_that_are_not_there(const float* x, float* out, int n) {
    __shared__ float sums[8];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    __syncthreads();
    if (t >= 32) return;
    own = sums[t];
    for (int distance = 4; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t == 0) out[0] = own;
}
