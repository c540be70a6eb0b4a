// /// opbench
// operator = "maxpool2d"
// title    = "a window's two columns as one float2"
// requires = ["window == 2", "stride == 2", "padding == 0"]
// launch   = [{ kernel = "reads_float2_from_odd_rows", grid = ["cdiv(n * c * p * q, 128)"], block = ["128"], args = ["x", "out", "n * c", "h", "w", "p", "q"] }]
// ///
//
// Every other row of an image of odd width begins at 4 modulo 8; even widths are right.
// expect: reads_float2_from_odd_rows.cu:14: misaligned: read of 8 bytes
extern "C" __global__ void reads_float2_from_odd_rows(const float* x, float* out, int planes, int h, int w, int p, int q) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= planes * p * q) return;
    const float* top = x + (i / q / p * h + i / q % p * 2) * w + i % q * 2;
    const float2 u = *reinterpret_cast<const float2*>(top), v = *reinterpret_cast<const float2*>(top + w);
    out[i] = fmaxf(fmaxf(u.x, u.y), fmaxf(v.x, v.y));
}
