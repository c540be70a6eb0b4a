// /// opbench
// operator = "copy"
// title    = "the lower half of a warp reads from the upper half, which its mask does not name"
// launch   = [{ kernel = "shuffles_from_outside_its_mask", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// What a lane outside of the mask would give is undefined.
// expect: shuffles_from_outside_its_mask.cu:13: warp-mask
extern "C" __global__ void shuffles_from_outside_its_mask(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float own = i < n ? x[i] : 0.0f;
    if (threadIdx.x % 32 < 16) {
        const float other = __shfl_sync(0x0000ffffu, own, 16 + threadIdx.x % 32);
        own += 0.0f * other;
    }
    if (i < n) out[i] = own;
}
