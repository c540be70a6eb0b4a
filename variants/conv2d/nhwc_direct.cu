// /// opbench
// title     = "nhwc: threadIdx.x along the output channels, PIXELS pixels per thread, 16-byte loads of channels"
// builds_on = "naive_channel_x"
// mechanism = ["vectorised_access", "register_tile"]
// tune      = { BLOCK_K = [32], BLOCK_P = [4], PIXELS = [8, 4, 1] }
// define.C4       = "1 if c % 4 == 0 else 0"
// define.BIAS     = "0 if epilogue == 'none' else 1"
// define.RELU     = "1 if 'relu' in epilogue else 0"
// define.RESIDUAL = "'add' in epilogue"
// define.HARDSWISH   = "epilogue == 'bias_hardswish'"
// define.HARDSIGMOID = "epilogue == 'bias_hardsigmoid'"
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
//
// [[launch]]
// kernel = "conv2d_nhwc_direct"
// grid   = ["cdiv(n * p * q, BLOCK_P * PIXELS)", "min(cdiv(k, BLOCK_K), 65535)"]
// block  = ["BLOCK_K", "BLOCK_P"]
// ///
//
// The same index order as in naive_channel_x, but in nhwc it matches the layout: stores are contiguous, and the image
// load is a 16-byte broadcast of four channels. The weights of neighbouring threads are still far apart (r*s*c floats).
// The L1 cache makes up for that only because the next channels are in the same lines; PIXELS pixels share each of
// these loads. Limit: L1 throughput.

#if C4
typedef float4 Channels;
__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    return a.w * b.w + (a.z * b.z + (a.y * b.y + (a.x * b.x + sum)));
}
constexpr int WIDTH = 4;
#else
typedef float Channels;
__device__ __forceinline__ float dot(float a, float b, float sum) { return a * b + sum; }
constexpr int WIDTH = 1;
#endif

// image [n][h][w][c], weight [k][r][s][c], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void conv2d_nhwc_direct(const float* __restrict__ image, const float* __restrict__ weight,
#if BIAS
                                              const float* __restrict__ bias,
#endif
#if RESIDUAL
                                              const float* __restrict__ residual,
#endif
                                              float* __restrict__ out, int n, int c, int h, int w, int k, int r, int s,
                                              int stride, int padding) {
    const int q = (w + 2 * padding - s) / stride + 1;
    const unsigned plane = (unsigned)((h + 2 * padding - r) / stride + 1) * q;
    const long long pixels = (long long)n * plane;
    const long long first = ((long long)blockIdx.x * BLOCK_P + threadIdx.y) * PIXELS;
    const float* origin[PIXELS];
    int y0[PIXELS], x0[PIXELS];
#pragma unroll
    for (int l = 0; l < PIXELS; ++l) {
        const unsigned pixel = (unsigned)((first + l) % plane);
        // A pixel after the last one gets a row that is outside of every image, so nothing is read for it.
        y0[l] = first + l < pixels ? (int)(pixel / q) * stride - padding : -(1 << 30);
        x0[l] = (int)(pixel % q) * stride - padding;
        origin[l] = image + (first + l < pixels ? (first + l) / plane : 0) * h * w * c;
    }
    for (int ko = blockIdx.y * BLOCK_K + threadIdx.x; ko < k; ko += gridDim.y * BLOCK_K) {
        float sum[PIXELS] = {};
        for (int i = 0; i < r; ++i) {
            for (int j = 0; j < s; ++j) {
                const float* source[PIXELS];
                bool inside[PIXELS];
#pragma unroll
                for (int l = 0; l < PIXELS; ++l) {
                    const int y = y0[l] + i, x = x0[l] + j;
                    inside[l] = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
                    source[l] = origin[l] + (inside[l] ? ((size_t)y * w + x) * c : 0);
                }
                const float* filter = weight + (((size_t)ko * r + i) * s + j) * c;
                for (int ci = 0; ci < c; ci += WIDTH) {
                    const Channels f = *reinterpret_cast<const Channels*>(filter + ci);
#pragma unroll
                    for (int l = 0; l < PIXELS; ++l)
                        if (inside[l]) sum[l] = dot(*reinterpret_cast<const Channels*>(source[l] + ci), f, sum[l]);
                }
            }
        }
#pragma unroll
        for (int l = 0; l < PIXELS; ++l) {
#if BIAS
            sum[l] += bias[ko];
#endif
#if RESIDUAL
            if (first + l < pixels) sum[l] += residual[(first + l) * k + ko];
#endif
#if RELU
            sum[l] = fmaxf(sum[l], 0.0f);
#elif HARDSWISH
            sum[l] *= fminf(fmaxf(sum[l] + 3.0f, 0.0f), 6.0f) / 6.0f;
#elif HARDSIGMOID
            sum[l] = fminf(fmaxf(sum[l] + 3.0f, 0.0f), 6.0f) / 6.0f;
#endif
            if (first + l < pixels) out[(first + l) * k + ko] = sum[l];
        }
    }
}
