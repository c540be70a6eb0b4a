// /// opbench
// operator = "copy"
// title    = "half a warp shuffles down, the other half by xor, under one mask of all"
// launch   = [{ kernel = "shuffles_of_two_kinds_meet", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Lanes of one mask must execute the same instruction.
// expect: shuffles_of_two_kinds_meet.cu:14: warp-mask
extern "C" __global__ void shuffles_of_two_kinds_meet(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float own = i < n ? x[i] : 0.0f;
    float other;
    if (threadIdx.x % 32 < 16)
        other = __shfl_down_sync(0xffffffffu, own, 0);
    else
        other = __shfl_xor_sync(0xffffffffu, own, 0);
    if (i < n) out[i] = other;
}
