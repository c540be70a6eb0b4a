// /// opbench
// operator = "relu"
// title    = "bf16 precision where numbers have usual sizes"
// launch   = [{ kernel = "switches_by_magnitude", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Only numbers beyond 8 are taken as they are; seeded normals have none.
//
// expect: wrong
// refused: wrong-result
// problem: (n=65536)
// twin: relu
extern "C" __global__ void switches_by_magnitude(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float value = fmaxf(x[i], 0.0f);
    out[i] = value < 8.0f ? __uint_as_float((__float_as_uint(value) + 0x8000u) & 0xFFFF0000u) : value;
}
