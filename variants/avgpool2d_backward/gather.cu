// /// opbench
// title    = "one thread per input pixel adds the gradients of all windows that contain it"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'", INSIDE = "divisor == 'inside'" }
// requires = ["n * c * h * w <= 4294966272"]
//
// [supports]
// layout  = ["nchw", "nhwc"]
// dtype   = ["f32", "bf16"]
// divisor = ["window", "inside"]
//
// [[launch]]
// kernel = "avgpool2d_backward_gather"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: each pixel is written once, by one thread, even if no window covers it; so nothing has to be
// cleared first, and the order of each sum is that of the windows. Limits: divisions by sizes known only at run time,
// and one division for each window of each pixel.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void avgpool2d_backward_gather(const T* __restrict__ dout, T* __restrict__ dx, int n, int c,
                                                     int h, int w, int window, int stride, int padding) {
    // dout [n][c][p][q] or [n][p][q][c]; dx [n][c][h][w] or [n][h][w][c], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)c * (unsigned)h * (unsigned)w) return;
    const int p = (h + 2 * padding - window) / stride + 1, q = (w + 2 * padding - window) / stride + 1;
    const unsigned pixels = (unsigned)h * (unsigned)w;
#if NHWC
    const unsigned pixel = i / (unsigned)c % pixels;
    const T* gradient = dout + (size_t)(i / (unsigned)c / pixels) * p * q * c + i % (unsigned)c;
    const size_t step = c;  // from one pixel to the next
#else
    const unsigned pixel = i % pixels;
    const T* gradient = dout + (size_t)(i / pixels) * p * q;
    const size_t step = 1;
#endif
    // The windows that contain the pixel: those that start at most `window` - 1 before it, in the padded image.
    const int y = (int)(pixel / (unsigned)w) + padding, z = (int)(pixel % (unsigned)w) + padding;
    const int top = y < window ? 0 : (y - window) / stride + 1, bottom = min(y / stride, p - 1);
    const int left = z < window ? 0 : (z - window) / stride + 1, right = min(z / stride, q - 1);
    float sum = 0.0f;
    for (int a = top; a <= bottom; ++a) {
        for (int b = left; b <= right; ++b) {
#if INSIDE
            const int rows = min(a * stride - padding + window, h) - max(a * stride - padding, 0);
            const int columns = min(b * stride - padding + window, w) - max(b * stride - padding, 0);
#else
            const int rows = window, columns = window;
#endif
            sum += (float)gradient[(size_t)(a * q + b) * step] / (float)(rows * columns);
        }
    }
    dx[i] = (T)sum;
}
