// /// opbench
// operator = "maxpool2d_backward"
// title    = "gives the gradient to the last of equal maxima"
// requires = ["window <= stride", "padding == 0"]
//
// [[launch]]
// zero = "dx"
//
// [[launch]]
// kernel = "scatter"
// grid   = ["cdiv(n * c * p * q, 256)"]
// block  = ["256"]
// ///
//
// Right wherever a window's maximum is single.
// expect: wrong: wrong at dx[
extern "C" __global__ void scatter(const float* x, const float* dout, float* dx, int n, int c, int h, int w, int window,
                                   int stride, int padding) {
    const int p = (h - window) / stride + 1, q = (w - window) / stride + 1, i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n * c * p * q) return;
    const int first = i / q / p * h * w + i / q % p * stride * w + i % q * stride;
    int place = first;
    for (int r = 0; r < window; ++r) {
        for (int s = 0; s < window; ++s) {
            if (x[first + r * w + s] >= x[place]) place = first + r * w + s;
        }
    }
    dx[place] = dout[i];
}
