// /// opbench
// title    = "gather: one thread per input pixel and channel adds over the windows that contain it"
// mechanism = ["coalesced"]
// supports = { layout = ["nchw", "nhwc"], epilogue = ["none", "add", "mask", "add_mask"], dtype = ["f32", "bf16"] }
// tune     = { BLOCK = [256, 128, 512] }
//
// [define]
// NHWC = "layout == 'nhwc'"
// BF16 = "dtype == 'bf16'"
// ADD  = "epilogue in ('add', 'add_mask')"
// MASK = "epilogue in ('mask', 'add_mask')"
//
// [[launch]]
// kernel = "conv2d_dgrad_gather"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The simplest form that needs no atomics. Filter position (i, j) connects pixel (y, x) with row (y + padding - i) /
// stride and column (x + padding - j) / stride of the output, if both are whole numbers and inside the output. The
// gradient of a pixel that no window contains is 0. Limit: loads, two per multiply-add, all served by the caches. In
// nchw a warp reads one weight and neighbouring elements of dout; in nhwc it reads neighbouring weights and one element
// of dout. At stride s, all but 1 of s * s positions are tested in vain.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// nchw: dout [n][k][p][q], weight [k][c][r][s], skip, out and dimage [n][c][h][w]; nhwc: channels innermost
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_dgrad_gather(const T* __restrict__ dout, const T* __restrict__ weight,
#if ADD
                        const T* __restrict__ skip,
#endif
#if MASK
                        const T* __restrict__ out,
#endif
                        T* __restrict__ dimage, int n, int c, int h, int w, int k, int r, int s, int stride,
                        int padding) {
    const int p = (h + 2 * padding - r) / stride + 1;
    const int q = (w + 2 * padding - s) / stride + 1;
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)n * c * h * w) return;
#if NHWC
    const int channel = (int)(index % c), x = (int)(index / c % w), y = (int)(index / c / w % h);
    const size_t image = index / c / w / h;
#else
    const int x = (int)(index % w), y = (int)(index / w % h), channel = (int)(index / w / h % c);
    const size_t image = index / w / h / c;
#endif
    float sum = 0.0f;
    for (int i = 0; i < r; ++i) {
        const int down = y + padding - i, row = down / stride;
        if (down < 0 || down % stride != 0 || row >= p) continue;
        for (int j = 0; j < s; ++j) {
            const int right = x + padding - j, column = right / stride;
            if (right < 0 || right % stride != 0 || column >= q) continue;
#if NHWC
            const T* gradient = dout + ((image * p + row) * q + column) * k;
            const T* filter = weight + (size_t)(i * s + j) * c + channel;
            for (int ko = 0; ko < k; ++ko) sum += (float)gradient[ko] * (float)filter[(size_t)ko * r * s * c];
#else
            const T* gradient = dout + (image * k * p + row) * q + column;
            const T* filter = weight + (size_t)channel * r * s + i * s + j;
            for (int ko = 0; ko < k; ++ko)
                sum += (float)gradient[(size_t)ko * p * q] * (float)filter[(size_t)ko * c * r * s];
#endif
        }
    }
#if ADD
    sum += (float)skip[index];
#endif
#if MASK
    if (!((float)out[index] > 0.0f)) sum = 0.0f;
#endif
    dimage[index] = (T)sum;
}
