// /// opbench
// title     = "one block per pair of channels: threads split the pixels, each adds R x S weights; tree reduction"
// builds_on = "thread_per_weight"
// mechanism = ["coalesced", "register_tile", "block_reduction", "warp_shuffle", "compile_time_sizes"]
// supports  = { bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// requires  = ["r * s <= 49", "n * p * q < 2 ** 31"]
// tune      = { BLOCK = [256, 128] }
//
// [define]
// BF16 = "dtype == 'bf16'"
// BIAS = "bias == 'yes'"
// R    = "r"
// S    = "s"
//
// [[launch]]
// kernel = "conv2d_wgrad_block_tree"
// grid   = ["k * c"]
// block  = ["BLOCK"]
// args   = ["image", "dout", "dweight", "dbias?", "n", "c", "h", "w", "k", "stride", "padding", "p", "q"]
// ///
//
// Each element of dout is used for R * S multiply-adds, whose sums stay in registers. Neighbouring threads read
// neighbouring pixels, so the loads of one filter position hit lines that the previous position brought into the L1
// cache. The sums are added by shuffles within each warp and then in the order of the warps: the same bits every time.
// The block of channel 0 also computes the gradient of the bias. Limit: dout is read once per channel of the image, and
// the image once per output channel, from L2; one load per multiply-add. The 121 sums of an 11 x 11 filter would not
// fit into registers.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
constexpr int SUMS = R * S + BIAS, WARPS = BLOCK / 32;

// image [n][c][h][w], dout [n][k][p][q], dweight [k][c][R][S], dbias [k]
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_wgrad_block_tree(const T* __restrict__ image, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS
                            float* __restrict__ dbias,
#endif
                            int n, int c, int h, int w, int k, int stride, int padding, int p, int q) {
    __shared__ float parts[SUMS][WARPS];
    const int channel = blockIdx.x % c, output = blockIdx.x / c, plane = p * q;
    float sum[SUMS] = {};
    for (int at = threadIdx.x; at < n * plane; at += BLOCK) {
        const int item = at / plane, pixel = at % plane;
        const float gradient = (float)dout[((size_t)item * k + output) * plane + pixel];
        const T* from = image + ((size_t)item * c + channel) * h * w;
        const int y0 = pixel / q * stride - padding, x0 = pixel % q * stride - padding;
#pragma unroll
        for (int i = 0; i < R; ++i) {
#pragma unroll
            for (int j = 0; j < S; ++j) {
                const int y = y0 + i, x = x0 + j;
                if ((unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w)
                    sum[i * S + j] += gradient * (float)from[(size_t)y * w + x];
            }
        }
#if BIAS
        sum[R * S] += gradient;
#endif
    }
#pragma unroll
    for (int e = 0; e < SUMS; ++e) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum[e] += __shfl_down_sync(0xffffffffu, sum[e], distance);
        if (threadIdx.x % 32 == 0) parts[e][threadIdx.x / 32] = sum[e];
    }
    __syncthreads();
    const int e = threadIdx.x;
    if (e >= SUMS) return;
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) total += parts[e][warp];
    if (e < R * S) dweight[((size_t)output * c + channel) * (R * S) + e] = total;
#if BIAS
    if (e == R * S && channel == 0) dbias[output] = total;
#endif
}
