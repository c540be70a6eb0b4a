// /// opbench
// title    = "one thread per element of both gradients, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'" }
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires = ["n * (c1 + 4 * c2) * h * w <= 4294966272"]
//
// [[launch]]
// kernel = "upsample_concat_backward_flat_divmod"
// grid   = ["cdiv(n * (c1 + 4 * c2) * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: the joined gradient is read once, in place; a split followed by a sum would write the gradient of
// the enlarged part and read it again. The threads of the small image come first. Limits: divisions by sizes known only
// at run time, and one element per load; in nchw, the loads of the small image's threads use only every second element.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

extern "C" __global__ void upsample_concat_backward_flat_divmod(const T* __restrict__ dout, T* __restrict__ dlow,
                                                                T* __restrict__ dskip, int n, int c1, int c2, int h,
                                                                int w) {
    // dout [n][c][p][q] or [n][p][q][c]; dlow [n][c1][h][w] or [n][h][w][c1]; dskip [n][c2][p][q] or [n][p][q][c2]; c =
    // c2 + c1, p = 2h, q = 2w
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned low = (unsigned)n * (unsigned)c1 * (unsigned)h * (unsigned)w;
    // large: pixels of a large image
    const unsigned c = (unsigned)(c1 + c2), q = 2 * (unsigned)w, large = 2 * (unsigned)h * q;
    if (i < low) {
#if NHWC
        const unsigned channel = i % (unsigned)c1, pixel = i / (unsigned)c1;  // pixel: numbered through all images
        const unsigned row = pixel / (unsigned)w, column = pixel % (unsigned)w;
        const T* source = dout + ((size_t)(2 * row) * q + 2 * column) * c + c2 + channel;
        const size_t step = c;
#else
        const unsigned column = i % (unsigned)w, row = i / (unsigned)w % (unsigned)h;
        const unsigned plane = i / (unsigned)w / (unsigned)h;
        const size_t from = (size_t)(plane / (unsigned)c1) * c + c2 + plane % (unsigned)c1;
        const T* source = dout + from * large + (size_t)(2 * row) * q + 2 * column;
        const size_t step = 1;
#endif
        const float above = (float)source[0] + (float)source[step];
        const float below = (float)source[q * step] + (float)source[(q + 1) * step];
        dlow[i] = (T)(above + below);
        return;
    }
    const unsigned k = i - low;
    if (k >= (unsigned)n * (unsigned)c2 * large) return;
#if NHWC
    dskip[k] = dout[(size_t)(k / (unsigned)c2) * c + k % (unsigned)c2];
#else
    const unsigned run = (unsigned)c2 * large;  // elements of skip in an image
    dskip[k] = dout[(size_t)(k / run) * c * large + k % run];
#endif
}
