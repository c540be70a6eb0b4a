// /// opbench
// title     = "1x1 filters, few outputs: eight lanes split a pixel's channels and add their sums by warp shuffles"
// builds_on = "nhwc_direct"
// mechanism = ["vectorised_access", "block_reduction", "warp_shuffle", "compile_time_sizes", "few_channels"]
// tune      = { BLOCK = [256, 128] }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32", "bf16"] }
// requires  = ["r == 1 and s == 1 and stride == 1 and padding == 0", "k <= 8"]
//
// [define]
// OUTPUTS = "k"
// BF16    = "1 if dtype == 'bf16' else 0"
// ALIGNED = "1 if c % (8 if dtype == 'bf16' else 4) == 0 else 0"
// BIAS    = "0 if epilogue == 'none' else 1"
// RELU    = "1 if epilogue == 'bias_relu' else 0"
//
// [[launch]]
// kernel = "conv2d_nhwc_pointwise_few_outputs"
// grid   = ["cdiv(n * h * w, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The last layer of a segmentation network is a matrix product with one or two columns. Tensor cores do not help,
// because each element of the image is used for only k multiply-adds. Eight lanes read the channels of a pixel, 16
// bytes each, so they read whole lines; each thread has eight pixels in flight. Adding eight sums over eight lanes
// takes 7 shuffles, not 24: at each step, a lane sends the sums of half of its pixels to its partner and keeps the
// other half. At the end each lane has one result, and stores are contiguous. Limit: DRAM.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
#if ALIGNED
constexpr int WIDTH = 16 / sizeof(T);  // channels of a load
typedef uint4 Load;
#else
constexpr int WIDTH = 1;
typedef T Load;
#endif
constexpr int LANES = 8, PIXELS = 8;

union Channels {
    Load all;
    T elements[WIDTH];
    __device__ Channels() {}
};

// image [n][h][w][c], weight [OUTPUTS][c], bias [OUTPUTS], out [n][h][w][OUTPUTS]; eight lanes take eight pixels
extern "C" __global__ void __launch_bounds__(BLOCK)
    conv2d_nhwc_pointwise_few_outputs(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                      const T* __restrict__ bias,
#endif
                                      T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                                      int padding) {
    const size_t pixels = (size_t)n * h * w;
    const int lane = threadIdx.x % LANES;
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) / LANES * PIXELS;
    float sum[OUTPUTS][PIXELS] = {};
    for (int channel = lane * WIDTH; channel < c; channel += LANES * WIDTH) {
        Channels x[PIXELS];
#pragma unroll
        for (int l = 0; l < PIXELS; ++l) {
            // after the end: load the last pixel again, but do not store
            const size_t pixel = first + l < pixels ? first + l : pixels - 1;
            x[l].all = *reinterpret_cast<const Load*>(image + pixel * c + channel);
        }
#pragma unroll
        for (int ko = 0; ko < OUTPUTS; ++ko) {
            Channels f;
            f.all = *reinterpret_cast<const Load*>(weight + (size_t)ko * c + channel);
#pragma unroll
            for (int l = 0; l < PIXELS; ++l)
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) sum[ko][l] += (float)x[l].elements[e] * (float)f.elements[e];
        }
    }
#pragma unroll
    for (int ko = 0; ko < OUTPUTS; ++ko)
#pragma unroll
        for (int half = PIXELS / 2; half > 0; half /= 2)
#pragma unroll
            for (int l = 0; l < half; ++l) {
                const float sent = lane & half ? sum[ko][l] : sum[ko][l + half];
                const float retained = lane & half ? sum[ko][l + half] : sum[ko][l];
                sum[ko][l] = retained + __shfl_xor_sync(0xffffffffu, sent, half);
            }
    if (first + lane >= pixels) return;
#pragma unroll
    for (int ko = 0; ko < OUTPUTS; ++ko) {
        float v = sum[ko][0];
#if BIAS
        v += (float)bias[ko];
#endif
#if RELU
        v = fmaxf(v, 0.0f);
#endif
        out[(first + lane) * OUTPUTS + ko] = T(v);
    }
}
