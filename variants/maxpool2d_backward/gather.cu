// /// opbench
// title    = "one thread per input pixel searches every window that contains it for its maximum"
// mechanism = ["coalesced"]
// tune     = { BLOCK = [256, 128, 512] }
// requires = ["n * c * h * w <= 4294966272"]
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "add", "mask"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// ADD  = "epilogue == 'add'"
// MASK = "epilogue == 'mask'"
//
// [[launch]]
// kernel = "maxpool2d_backward_gather"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: for each window that covers a pixel, a thread searches the maximum, and adds the window's gradient
// if its pixel is the maximum. Nothing has to be cleared first, no two threads add to the same element, and the order
// of each sum is that of the windows: the same bits every time. Limits: the elements of a window are read once for each
// of its pixels, and all searches are loops whose bounds are known only at run time.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void maxpool2d_backward_gather(const T* __restrict__ x, const T* __restrict__ dout,
#if ADD
                                                     const T* __restrict__ skip,
#endif
                                                     T* __restrict__ dx, int n, int c, int h, int w, int window,
                                                     int stride, int padding) {
    // x, skip, dx [n][c][h][w] or [n][h][w][c], fewer than 2^32 elements; dout [n][c][p][q] or [n][p][q][c]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)c * (unsigned)h * (unsigned)w) return;
    const int p = (h + 2 * padding - window) / stride + 1, q = (w + 2 * padding - window) / stride + 1;
    const unsigned pixels = (unsigned)h * (unsigned)w;
#if NHWC
    const unsigned pixel = i / (unsigned)c % pixels;
    const size_t first = (size_t)(i / (unsigned)c / pixels), channel = i % (unsigned)c;
    const T* image = x + first * pixels * c + channel;
    const T* gradient = dout + first * p * q * c + channel;
    const size_t step = c;  // from one pixel to the next
#else
    const unsigned pixel = i % pixels;
    const T* image = x + (size_t)(i / pixels) * pixels;
    const T* gradient = dout + (size_t)(i / pixels) * p * q;
    const size_t step = 1;
#endif
    const int row = (int)(pixel / (unsigned)w), column = (int)(pixel % (unsigned)w);
    // The windows that contain the pixel: those that start at most `window` - 1 before it, in the padded image.
    const int y = row + padding, z = column + padding;
    const int top = y < window ? 0 : (y - window) / stride + 1, bottom = min(y / stride, p - 1);
    const int left = z < window ? 0 : (z - window) / stride + 1, right = min(z / stride, q - 1);
    float sum = 0.0f;
    for (int a = top; a <= bottom; ++a) {
        for (int b = left; b <= right; ++b) {
            float largest = __int_as_float(0xff800000);  // -infinity
            int place = -1;
            for (int r = max(a * stride - padding, 0); r < min(a * stride - padding + window, h); ++r) {
                for (int s = max(b * stride - padding, 0); s < min(b * stride - padding + window, w); ++s) {
                    const float value = (float)image[(size_t)(r * w + s) * step];
                    if (value > largest) {
                        largest = value;
                        place = r * w + s;
                    }
                }
            }
            if (place == (int)pixel) sum += (float)gradient[(size_t)(a * q + b) * step];
        }
    }
#if ADD
    sum += (float)skip[i];
#elif MASK
    if (!((float)x[i] > 0.0f)) sum = 0.0f;
#endif
    dx[i] = (T)sum;
}
