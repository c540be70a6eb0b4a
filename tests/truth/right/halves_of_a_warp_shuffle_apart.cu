// /// opbench
// operator = "copy"
// title    = "each half of a warp shuffles under a mask of its own, by instructions of two kinds"
// launch   = [{ kernel = "halves_of_a_warp_shuffle_apart", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Masks that share no lane do not wait for each other.
extern "C" __global__ void halves_of_a_warp_shuffle_apart(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x % 32;
    const float own = i < n ? x[i] : 0.0f;
    float other;
    if (lane < 16)
        other = __shfl_xor_sync(0x0000ffffu, own, 1);
    else
        other = __shfl_sync(0xffff0000u, own, lane ^ 1);
    const float back = __shfl_xor_sync(0xffffffffu, other, 1);
    if (i < n) out[i] = back;
}
