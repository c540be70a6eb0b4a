// /// opbench
// title     = "few input channels: filters and image tile in shared memory, OUT channels x PIXELS pixels per thread"
// builds_on = "multi_channel_out"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "compile_time_sizes", "few_channels"]
// tune      = { OUT = [8, 16], PIXELS = [2, 4], ROWS = [4, 8] }
// define.R      = "r"
// define.S      = "s"
// define.STRIDE = "stride"
// define.BIAS   = "0 if epilogue == 'none' else 1"
// define.RELU   = "1 if epilogue == 'bias_relu' else 0"
// supports  = { epilogue = ["none", "bias", "bias_relu"] }
// requires  = [
//     "c <= 4",
//     "r * s <= 256",
//     """4 * (r * s * (OUT * 4 + 4) + ((ROWS - 1) * stride + r) * \
//     cdiv((PIXELS * 8 - 1) * stride + s, PIXELS * stride) * (PIXELS * stride + 1 - PIXELS * stride % 2)) \
//     <= 227 * 1024""",
// ]
//
// [[launch]]
// kernel = "conv2d_small_channels"
// grid   = ["cdiv(k, OUT * 4) * cdiv(q, PIXELS * 8)", "min(cdiv(p, ROWS), 65535)", "min(n, 65535)"]
// block  = [32, "ROWS"]
// shared = """4 * (r * s * (OUT * 4 + 4) + ((ROWS - 1) * stride + r) * \
//     cdiv((PIXELS * 8 - 1) * stride + s, PIXELS * stride) * (PIXELS * stride + 1 - PIXELS * stride % 2))"""
// ///
//
// In a matrix product with steps of 8 channels, an image with 1 or 3 channels is mostly zeros (first layers: AlexNet 1
// -> 96, 11x11). Here the depth is the filter itself. For each filter row, a thread keeps (PIXELS-1)*stride+s image
// elements in registers and uses each of them for up to s filter columns. The weights of OUT filters are 16-byte
// broadcasts from shared memory. At 11x11, stride 4, OUT=8, PIXELS=4 this is 352 multiply-adds for 45 loads from shared
// memory. Limit: copying into shared memory if filters are small; otherwise writing the output.

constexpr int CHUNK = PIXELS * STRIDE;              // image columns from one thread to its neighbour
constexpr int CHUNK_PITCH = CHUNK + 1 - CHUNK % 2;  // odd, so that neighbouring threads use different banks
constexpr int SPAN = (PIXELS * 8 - 1) * STRIDE + S;
constexpr int LINE_PITCH = (SPAN + CHUNK - 1) / CHUNK * CHUNK_PITCH;
constexpr int LINES = (ROWS - 1) * STRIDE + R;
constexpr int GROUP = OUT * 4;                     // output channels of a block
constexpr int FILTER_PITCH = GROUP + 4;            // spreads the transposing store over the banks
constexpr int NEEDED = (PIXELS - 1) * STRIDE + S;  // image columns of one thread

// image [n][c][h][w], weight [k][c][R][S], bias [k], out [n][k][p][q]; filters [R][S][FILTER_PITCH], tile
// [LINES][LINE_PITCH]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    conv2d_small_channels(const float* __restrict__ image, const float* __restrict__ weight,
#if BIAS
                          const float* __restrict__ bias,
#endif
                          float* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                          int padding) {
    extern __shared__ __align__(16) float filters[];
    float* tile = filters + R * S * FILTER_PITCH;
    const int p = (h + 2 * padding - R) / STRIDE + 1;
    const int q = (w + 2 * padding - S) / STRIDE + 1;
    const int tiles_q = (q + PIXELS * 8 - 1) / (PIXELS * 8);
    const int k0 = blockIdx.x / tiles_q * GROUP;
    const int q0 = blockIdx.x % tiles_q * PIXELS * 8;
    const int lane_q = threadIdx.x % 8, lane_k = threadIdx.x / 8;  // a warp is one output row: 8 x PIXELS by 4 x OUT
    const int thread = threadIdx.y * 32 + threadIdx.x;
    const int tile_x = q0 * STRIDE - padding;
    const int xo = q0 + lane_q * PIXELS;
    for (int ni = blockIdx.z; ni < n; ni += gridDim.z) {
        for (int p0 = blockIdx.y * ROWS; p0 < p; p0 += gridDim.y * ROWS) {
            const int tile_y = p0 * STRIDE - padding;
            float sum[OUT][PIXELS] = {};
            for (int ci = 0; ci < c; ++ci) {
                const float* channel = image + ((size_t)ni * c + ci) * h * w;
                for (int e = thread; e < GROUP * R * S; e += 32 * ROWS) {
                    const int ko = e / (R * S), position = e % (R * S);
                    const float v = k0 + ko < k ? weight[((size_t)(k0 + ko) * c + ci) * R * S + position] : 0.0f;
                    filters[position * FILTER_PITCH + ko] = v;
                }
                for (int line = threadIdx.y; line < LINES; line += ROWS) {
                    const int y = tile_y + line;
                    for (int column = threadIdx.x; column < SPAN; column += 32) {
                        const int x = tile_x + column;
                        const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w;
                        tile[line * LINE_PITCH + column / CHUNK * CHUNK_PITCH + column % CHUNK] =
                            inside ? channel[(size_t)y * w + x] : 0.0f;
                    }
                }
                __syncthreads();
#pragma unroll 1
                for (int i = 0; i < R; ++i) {
                    const float* line = tile + (threadIdx.y * STRIDE + i) * LINE_PITCH + lane_q * CHUNK_PITCH;
                    float pixel[NEEDED];
#pragma unroll
                    for (int m = 0; m < NEEDED; ++m) pixel[m] = line[m / CHUNK * CHUNK_PITCH + m % CHUNK];
#pragma unroll
                    for (int j = 0; j < S; ++j) {
                        const float* filter = filters + (i * S + j) * FILTER_PITCH + lane_k * 4;
#pragma unroll
                        for (int o4 = 0; o4 < OUT; o4 += 4) {
                            const float4 f = *reinterpret_cast<const float4*>(filter + o4 * 4);
#pragma unroll
                            for (int l = 0; l < PIXELS; ++l) {
                                sum[o4][l] += f.x * pixel[l * STRIDE + j];
                                sum[o4 + 1][l] += f.y * pixel[l * STRIDE + j];
                                sum[o4 + 2][l] += f.z * pixel[l * STRIDE + j];
                                sum[o4 + 3][l] += f.w * pixel[l * STRIDE + j];
                            }
                        }
                    }
                }
                __syncthreads();  // no thread may overwrite the tiles while others still read them
            }
            const int yo = p0 + threadIdx.y;
#pragma unroll
            for (int o = 0; o < OUT; ++o) {
                const int ko = k0 + o / 4 * 16 + lane_k * 4 + o % 4;
                if (ko >= k || yo >= p) continue;
#pragma unroll
                for (int l = 0; l < PIXELS; ++l) {
#if BIAS
                    sum[o][l] += bias[ko];
#endif
#if RELU
                    sum[o][l] = fmaxf(sum[o][l], 0.0f);
#endif
                }
                float* target = out + (((size_t)ni * k + ko) * p + yo) * q + xo;
                if (PIXELS % 4 == 0 && q % 4 == 0) {
#pragma unroll
                    for (int l = 0; l + 3 < PIXELS; l += 4)
                        if (xo + l < q)
                            *reinterpret_cast<float4*>(target + l) =
                                make_float4(sum[o][l], sum[o][l + 1], sum[o][l + 2], sum[o][l + 3]);
                } else if (q % 2 == 0) {
#pragma unroll
                    for (int l = 0; l + 1 < PIXELS; l += 2)
                        if (xo + l < q) *reinterpret_cast<float2*>(target + l) = make_float2(sum[o][l], sum[o][l + 1]);
                } else {
#pragma unroll
                    for (int l = 0; l < PIXELS; ++l)
                        if (xo + l < q) target[l] = sum[o][l];
                }
            }
        }
    }
}
