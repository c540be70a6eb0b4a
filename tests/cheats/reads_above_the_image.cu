// /// opbench
// operator = "maxpool2d"
// title    = "tests three of the four borders: reads above the image"
// requires = ["padding > 0"]
// launch   = [{ kernel = "reads_above_the_image", grid = ["cdiv(n * c * p * q, 128)"], block = ["128"], args = ["x", "out", "n * c", "h", "w", "p", "q", "window", "stride", "padding"] }]
// ///
//
// Row -1 of the first plane lies before the image.
// expect: reads_above_the_image.cu:18: out-of-bounds: read of 4 bytes at byte -
extern "C" __global__ void reads_above_the_image(const float* x, float* out, int planes, int h, int w, int p, int q,
                                                 int window, int stride, int padding) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= planes * p * q) return;
    float largest = __int_as_float(0xff800000);
    for (int r = 0; r < window; ++r) {
        for (int s = 0; s < window; ++s) {
            const int y = i / q % p * stride - padding + r, z = i % q * stride - padding + s;
            if (y < h && z >= 0 && z < w) largest = fmaxf(largest, x[(i / q / p * h + y) * w + z]);
        }
    }
    out[i] = largest;
}
