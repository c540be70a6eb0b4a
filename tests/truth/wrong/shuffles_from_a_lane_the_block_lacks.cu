// /// opbench
// operator = "relu"
// title    = "a minimum with the other half of a warp, in blocks of 16 threads"
// launch   = [{ kernel = "shuffles_from_a_lane_the_block_lacks", grid = ["cdiv(n, 16)"], block = ["16"] }]
// ///
//
// Lanes 16 to 31 do not exist; what a shuffle from them gives is undefined.
// expect: shuffles_from_a_lane_the_block_lacks.cu:13: warp-mask
extern "C" __global__ void shuffles_from_a_lane_the_block_lacks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 16 + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    v = fmaxf(v, 0.0f);
    const float beyond = __shfl_down_sync(0xffffffff, v, 16);
    if (i < n) out[i] = fminf(v, beyond);
}
