// /// opbench
// title     = "nhwc, few input channels, bf16 mma.sync: filters stay in shared memory as operands, image rows beside"
// builds_on = "nhwc_small_channels"
// tune      = { ROWS = [4, 2], TILES = [2, 1], GROUPS = [3, 2, 1] }
// where     = ["(ROWS, TILES, GROUPS) in ((4, 2, 3), (4, 2, 2), (4, 1, 1), (2, 2, 1))"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["bf16"] }
// requires  = [
//     "c <= 4", "c * r * s <= 160", "k <= 128", "cdiv(k, 32) % GROUPS == 0",
//     "n * cdiv(p, ROWS) * cdiv(q, 16) < 2 ** 31",
//     """2 * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c + \
//        1024 * cdiv(c * r * s, 16) * cdiv(k, 32) <= 220 * 1024""",
// ]
// precision = "bf16"
// compute_capability = "8.0"
//
// [define]
// C       = "c"
// R       = "r"
// S       = "s"
// OUTPUTS = "k"
// STRIDE  = "stride"
// BIAS    = "0 if epilogue == 'none' else 1"
// RELU    = "1 if epilogue == 'bias_relu' else 0"
//
// [[launch]]
// kernel = "conv2d_nhwc_few_channels_mma_bf16"
// grid   = ["min(n * cdiv(p, ROWS) * cdiv(q, 16 * TILES), 4 * sm_count)"]
// block  = ["32 * ROWS * (cdiv(k, 32) // GROUPS)"]
// shared = """1024 * cdiv(c * r * s, 16) * cdiv(k, 32) + \
//             cdiv(2 * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c, 16) * 16"""
// ///
//
// A first layer's matrix product has no aligned 16 bytes to copy: windows of 1 or 3 channels begin anywhere. A block
// keeps all filters in shared memory in the order of the instruction's registers, one 8-byte load for a tile, for
// as many output tiles as it takes; of each it stages the image once, 16 bits an element, and threads gather their
// operands from there, at distances from the window's corner that stay in registers. Channels are dealt out so that a
// thread stores 16 contiguous bytes. Limited by the writing of the output, and by 8 loads of 16 bits for a window tile
// of 16 x 16.

#include <cuda_bf16.h>

typedef __nv_bfloat16 T;
constexpr int DEPTH = R * S * C, SLICES = (DEPTH + 15) / 16;  // an mma tile is 16 deep
constexpr int ALL_GROUPS = (OUTPUTS + 31) / 32;               // of 32 output channels, four mma tiles
constexpr int WARPS_K = ALL_GROUPS / GROUPS, THREADS = 32 * ROWS * WARPS_K;
constexpr int NT = 4 * GROUPS;       // a warp's mma tiles: TILES x NT
constexpr int COLUMNS = 16 * TILES;  // of the output, in each of ROWS rows
constexpr int LINES = (ROWS - 1) * STRIDE + R, WIDTH = ((COLUMNS - 1) * STRIDE + S) * C;
constexpr int VEC = 16 / sizeof(T);

// Where an element of a pixel's window lies, counted from the window's first. Beyond the depth the weights are zero;
// such an element reads the window's first, which the sum contains anyway.
__device__ __forceinline__ int offset_of(int element) {
    return element < DEPTH ? element / (S * C) * WIDTH + element % (S * C) : 0;
}
// The output channel of a mma tile's column: a thread's columns of VEC / 2 tiles make 16 contiguous bytes.
__device__ __forceinline__ int channel_of(int tile, int column) {
    return tile / (VEC / 2) * (4 * VEC) + column / 2 * VEC + tile % (VEC / 2) * 2 + column % 2;
}

// A thread's elements of 16 in an operand of the bf16 instruction: two neighbours, twice.
__device__ __forceinline__ int element_of(int quarter, int v) { return v / 2 * 8 + quarter * 2 + v % 2; }
struct __align__(8) Fragment { unsigned pair[2]; };
struct Left { unsigned pair[4]; };
__device__ __forceinline__ unsigned pack(T x, T y) {
    const __nv_bfloat162 pair(x, y);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ Fragment make_fragment(const float (&x)[4]) {
    return {{pack(T(x[0]), T(x[1])), pack(T(x[2]), T(x[3]))}};
}
__device__ __forceinline__ Left make_left(const T (&x)[2][4]) {
    return {{pack(x[0][0], x[0][1]), pack(x[1][0], x[1][1]), pack(x[0][2], x[0][3]), pack(x[1][2], x[1][3])}};
}
__device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Fragment& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a.pair[0]), "r"(a.pair[1]), "r"(a.pair[2]), "r"(a.pair[3]), "r"(b.pair[0]), "r"(b.pair[1]));
}

// image [n][h][w][C], weight [OUTPUTS][R][S][C], bias [OUTPUTS], out [n][p][q][OUTPUTS]
// filters [SLICES][4 * ALL_GROUPS][32 lanes], tile [LINES][WIDTH]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_nhwc_few_channels_mma_bf16(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                      const T* __restrict__ bias,
#endif
                                      T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                                      int padding) {
    extern __shared__ __align__(16) unsigned char memory[];
    Fragment* filters = reinterpret_cast<Fragment*>(memory);
    T* tile = reinterpret_cast<T*>(memory + sizeof(Fragment) * 32 * 4 * ALL_GROUPS * SLICES);
    const int p = (h + 2 * padding - R) / STRIDE + 1, q = (w + 2 * padding - S) / STRIDE + 1;
    const int tiles_q = (q + COLUMNS - 1) / COLUMNS, tiles_p = (p + ROWS - 1) / ROWS, tiles = n * tiles_p * tiles_q;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int row = warp / WARPS_K, first_tile = warp % WARPS_K * NT;  // this warp's row of the output and channels

#pragma unroll 4
    for (int e = thread; e < SLICES * 4 * ALL_GROUPS * 32; e += THREADS) {
        const int channel = channel_of(e / 32 % (4 * ALL_GROUPS), e % 32 / 4), slice = e / (4 * ALL_GROUPS * 32);
        float found[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            const int element = slice * 16 + element_of(e % 4, v);
            found[v] = channel < OUTPUTS && element < DEPTH ? (float)weight[channel * DEPTH + element] : 0.0f;
        }
        filters[e] = make_fragment(found);
    }
    // Of each slice a thread needs four elements of a window; they lie at the same distances for every pixel.
    int offset[SLICES][4];
#pragma unroll
    for (int e = 0; e < SLICES * 4; ++e) offset[e / 4][e % 4] = offset_of(e / 4 * 16 + element_of(lane % 4, e % 4));

    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const int q0 = index % tiles_q * COLUMNS, p0 = index / tiles_q % tiles_p * ROWS, ni = index / tiles_q / tiles_p;
        __syncthreads();  // all have read the tile before
        const int x0 = q0 * STRIDE - padding;
#pragma unroll 2
        for (int line = warp; line < LINES; line += THREADS / 32) {
            const int y = p0 * STRIDE - padding + line;
            const T* from = image + ((long long)ni * h + y) * w * C + x0 * C;
#pragma unroll
            for (int e = 0; e < (WIDTH + 31) / 32; ++e) {
                const int element = e * 32 + lane;
                const bool inside =
                    (unsigned)y < (unsigned)h && (unsigned)(x0 + element / C) < (unsigned)w && x0 * C + element >= 0;
                if (element < WIDTH) tile[line * WIDTH + element] = inside ? from[element] : T(0.0f);
            }
        }
        __syncthreads();

        float sum[TILES][NT][4] = {};
        const T* window = tile + row * STRIDE * WIDTH + lane / 4 * STRIDE * C;
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            Left a[TILES];
#pragma unroll
            for (int mi = 0; mi < TILES; ++mi) {
                const T* upper = window + mi * 16 * STRIDE * C;
                const T* lower = upper + 8 * STRIDE * C;
                T found[2][4];
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    found[0][v] = upper[offset[slice][v]];
                    found[1][v] = lower[offset[slice][v]];
                }
                a[mi] = make_left(found);
            }
#pragma unroll
            for (int ni = 0; ni < NT; ++ni) {
                const Fragment b = filters[(slice * 4 * ALL_GROUPS + first_tile + ni) * 32 + lane];
#pragma unroll
                for (int mi = 0; mi < TILES; ++mi) multiply(sum[mi][ni], a[mi], b);
            }
        }

        const int yo = p0 + row;
        if (yo >= p) continue;
#pragma unroll
        for (int ti = 0; ti < NT; ti += VEC / 2) {
            const int channel = channel_of(first_tile + ti, lane % 4 * 2);
#if BIAS
            float shift[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) shift[v] = channel + v < OUTPUTS ? (float)bias[channel + v] : 0.0f;
#endif
#pragma unroll
            for (int half = 0; half < 2 * TILES; ++half) {
                const int xo = q0 + half * 8 + lane / 4;
                T* to = out + ((((long long)ni * p + yo) * q + xo) * OUTPUTS + channel);
                union {
                    T elements[VEC];
                    uint4 bits;
                } packed;
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    float x = sum[half / 2][ti + v / 2][half % 2 * 2 + v % 2];
#if BIAS
                    x += shift[v];
#endif
#if RELU
                    x = fmaxf(x, 0.0f);
#endif
                    packed.elements[v] = T(x);
                }
                if (OUTPUTS % VEC == 0) {
                    if (xo < q && channel < OUTPUTS) *reinterpret_cast<uint4*>(to) = packed.bits;
                } else {
#pragma unroll
                    for (int v = 0; v < VEC; ++v)
                        if (xo < q && channel + v < OUTPUTS) to[v] = packed.elements[v];
                }
            }
        }
    }
}
