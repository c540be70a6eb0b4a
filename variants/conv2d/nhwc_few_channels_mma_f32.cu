// /// opbench
// title     = "nhwc_few_channels_mma with float32 accuracy: tf32 products and corrections"
// builds_on = "nhwc_small_channels"
// tune      = { ROWS = [4, 2], TILES = [2, 1], GROUPS = [3, 1] }
// where     = ["(ROWS, TILES, GROUPS) in ((4, 2, 3), (4, 1, 1), (2, 2, 1), (2, 1, 1))"]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "c <= 4", "c * r * s <= 160", "k <= 128", "cdiv(k, 32) % GROUPS == 0",
//     "n * cdiv(p, ROWS) * cdiv(q, 16) < 2 ** 31",
//     """4 * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c + \
//        4096 * cdiv(c * r * s, 16) * cdiv(k, 32) <= 220 * 1024""",
// ]
// precision = "f32"
// product   = "tf32x3"
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
// kernel = "conv2d_nhwc_few_channels_mma_f32"
// grid   = ["min(n * cdiv(p, ROWS) * cdiv(q, 16 * TILES), 4 * sm_count)"]
// block  = ["32 * ROWS * (cdiv(k, 32) // GROUPS)"]
// shared = """4096 * cdiv(c * r * s, 16) * cdiv(k, 32) + \
//             cdiv(4 * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c, 16) * 16"""
// ///
//
// As nhwc_few_channels_mma_bf16, to float32's accuracy: products of tf32's big parts, and two more with what tf32 cuts
// off. These two are in bf16 where the depth allows it (see nhwc_mma_tf32_corrected), else in tf32. The filters' parts
// are made once a block, the image's for each window tile, and shared by the tile's output channels. The depth is short
// enough to leave all sums to the tensor core. Limited by the writing of the output for 3x3 filters on one channel, by
// mma.sync and shared memory for larger ones. Idea: see nhwc_mma_3xtf32.

#include <cuda_bf16.h>

typedef float T;
#define CORRECTED (R * S * C >= 100)
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

// A float to shared memory without a register in between; zero, and nothing read, where it is outside.
__device__ __forceinline__ void copy(T* to, const T* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 4 : 0)
                 : "memory");
}

// A thread's elements of 16 in operands of the tf32 instruction: those of two slices of 8, four apart.
__device__ __forceinline__ int element_of(int quarter, int v) { return v * 4 + quarter; }
// x = big + small: tf32 cuts off the lower 13 bits, so that big is x for the instruction.
__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float small_part(float x) { return x - __uint_as_float(bits(x) & 0xffffe000u); }
__device__ __forceinline__ void multiply_tf32(float (&sum)[4], const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#if CORRECTED
struct __align__(16) Fragment { unsigned x[4], whole[2], rest[2]; };  // rest: what tf32 cuts off; both in bf16
struct Left { unsigned x[8], whole[4], rest[4]; };
__device__ __forceinline__ unsigned pack(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ Fragment make_fragment(const float (&x)[4]) {
    return {{bits(x[0]), bits(x[1]), bits(x[2]), bits(x[3])},
            {pack(x[0], x[1]), pack(x[2], x[3])},
            {pack(small_part(x[0]), small_part(x[1])), pack(small_part(x[2]), small_part(x[3]))}};
}
__device__ __forceinline__ Left make_left(const T (&x)[2][4]) {
    Left a;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const float first = x[e % 2][e / 2 * 2], second = x[e % 2][e / 2 * 2 + 1];
        a.x[e / 2 * 4 + e % 2] = bits(first), a.x[e / 2 * 4 + e % 2 + 2] = bits(second);
        a.whole[e] = pack(first, second), a.rest[e] = pack(small_part(first), small_part(second));
    }
    return a;
}
__device__ __forceinline__ void multiply_bf16(float (&sum)[4], const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Fragment& b) {
    multiply_bf16(sum, a.rest, b.whole);
    multiply_bf16(sum, a.whole, b.rest);
    multiply_tf32(sum, a.x, b.x);
    multiply_tf32(sum, a.x + 4, b.x + 2);
}
#else
struct __align__(16) Fragment { unsigned x[4], rest[4]; };
struct Left { unsigned x[8], rest[8]; };
// Both parts rounded to tf32: a short sum's allowance is small.
__device__ __forceinline__ void split(float x, unsigned& big, unsigned& rest) {
    big = (bits(x) + 0x1000u) & 0xffffe000u;
    rest = bits(x - __uint_as_float(big)) + 0x1000u;
}
__device__ __forceinline__ Fragment make_fragment(const float (&x)[4]) {
    Fragment b;
#pragma unroll
    for (int e = 0; e < 4; ++e) split(x[e], b.x[e], b.rest[e]);
    return b;
}
__device__ __forceinline__ Left make_left(const T (&x)[2][4]) {
    Left a;
#pragma unroll
    for (int e = 0; e < 8; ++e) split(x[e % 2][e / 2], a.x[e], a.rest[e]);
    return a;
}
__device__ __forceinline__ void multiply(float (&sum)[4], const Left& a, const Fragment& b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        multiply_tf32(sum, a.rest + half * 4, b.x + half * 2);
        multiply_tf32(sum, a.x + half * 4, b.rest + half * 2);
        multiply_tf32(sum, a.x + half * 4, b.x + half * 2);
    }
}
#endif

// image [n][h][w][C], weight [OUTPUTS][R][S][C], bias [OUTPUTS], out [n][p][q][OUTPUTS]
// filters [SLICES][4 * ALL_GROUPS][32 lanes], tile [LINES][WIDTH]
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_nhwc_few_channels_mma_f32(const T* __restrict__ image, const T* __restrict__ weight,
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

    // The window of a tile of the output. No thread waits for it before filters and sums are done.
    auto copy_tile = [&](int index) {
        const int q0 = index % tiles_q * COLUMNS, p0 = index / tiles_q % tiles_p * ROWS, ni = index / tiles_q / tiles_p;
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
                if (element < WIDTH) copy(tile + line * WIDTH + element, inside ? from + element : image, inside);
            }
        }
    };
    copy_tile(blockIdx.x);
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
        asm volatile("cp.async.wait_all;\n" ::: "memory");
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

        if (index + (int)gridDim.x < tiles) {
            __syncthreads();  // all have read the tile
            copy_tile(index + gridDim.x);
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
