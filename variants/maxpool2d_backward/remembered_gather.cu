// /// opbench
// title     = "one thread per input pixel reads the saved position of the maximum of every window around it"
// builds_on = "gather"
// mechanism = ["coalesced", "fewer_operations"]
// tune      = { BLOCK = [256, 128, 512] }
// requires  = ["n * c * h * w <= 4294966272"]
//
// [supports]
// layout   = ["nchw", "nhwc"]
// dtype    = ["f32", "bf16"]
// epilogue = ["none", "add", "mask"]
// search   = ["remembered"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// ADD  = "epilogue == 'add'"
// MASK = "epilogue == 'mask'"
//
// [[launch]]
// kernel = "maxpool2d_backward_remembered_gather"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The forward pass saved one byte per window. Reading it moves a sixteenth of the bytes of the image for 2x2 windows in
// f32, and no elements are compared. If the image is the output of a ReLU, its mask is tested only at the maxima, which
// receive the gradients. Limits: loops whose bounds are known only at run time, divisions, one element per load and
// store.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void maxpool2d_backward_remembered_gather(const unsigned char* __restrict__ positions,
                                                                const T* __restrict__ dout,
#if ADD
                                                                const T* __restrict__ skip,
#elif MASK
                                                                const T* __restrict__ out,
#endif
                                                                T* __restrict__ dx, int n, int c, int h, int w,
                                                                int window, int stride, int padding) {
    // skip, dx [n][c][h][w] or [n][h][w][c], fewer than 2^32 elements; positions, dout, out [n][c][p][q] or
    // [n][p][q][c]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)c * (unsigned)h * (unsigned)w) return;
    const int p = (h + 2 * padding - window) / stride + 1, q = (w + 2 * padding - window) / stride + 1;
    const unsigned pixels = (unsigned)h * (unsigned)w;
#if NHWC
    const unsigned pixel = i / (unsigned)c % pixels;
    const size_t first = (size_t)(i / (unsigned)c / pixels) * p * q * c + i % (unsigned)c;
    const size_t step = c;  // from one window to the next
#else
    const unsigned pixel = i % pixels;
    const size_t first = (size_t)(i / pixels) * p * q;
    const size_t step = 1;
#endif
    // The windows that contain the pixel: those that start at most `window` - 1 before it, in the padded image.
    const int y = (int)(pixel / (unsigned)w) + padding, z = (int)(pixel % (unsigned)w) + padding;
    const int top = y < window ? 0 : (y - window) / stride + 1, bottom = min(y / stride, p - 1);
    const int left = z < window ? 0 : (z - window) / stride + 1, right = min(z / stride, q - 1);
    float sum = 0.0f;
    for (int a = top; a <= bottom; ++a) {
        for (int b = left; b <= right; ++b) {
            const size_t at = first + (size_t)(a * q + b) * step;
            if (positions[at] != (y - a * stride) * window + z - b * stride) continue;
#if MASK
            if (!((float)out[at] > 0.0f)) continue;
#endif
            sum += (float)dout[at];
        }
    }
#if ADD
    sum += (float)skip[i];
#endif
    dx[i] = (T)sum;
}
