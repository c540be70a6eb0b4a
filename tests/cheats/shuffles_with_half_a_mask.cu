// /// opbench
// operator = "sum"
// title    = "sixteen lanes in the mask, thirty-two in the shuffle"
// launch   = [{ kernel = "shuffles_with_half_a_mask", grid = ["1"], block = ["32"] }]
// ///
//
// Every lane that executes a shuffle must be named in its mask.
// expect: shuffles_with_half_a_mask.cu:12: warp-mask
extern "C" __global__ void shuffles_with_half_a_mask(const float* x, float* out, int n) {
    float own = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) own += x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_xor_sync(0x0000ffffu, own, distance);
    if (threadIdx.x == 0) out[0] = own;
}
