// /// opbench
// operator = "copy"
// title    = "a number from an address that it made up"
// launch   = [{ kernel = "reads_a_fixed_address", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Whatever lies there is nobody's argument.
//
// refused: out-of-bounds
extern "C" __global__ void reads_a_fixed_address(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float other = *reinterpret_cast<const float*>(0x7f0000001000ull);
    out[i] = other == 1.5f ? other : x[i];
}
