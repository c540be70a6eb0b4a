// /// opbench
// builds_on = "nhwc_small_channels"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "compile_time_sizes", "async_copy",
//     "tensor_core", "few_channels",
// ]
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu", "bias_hardswish"] }
// requires  = [
//     "c <= 4", "c * r * s <= 160", "k <= 128", "cdiv(k, 32) % GROUPS == 0",
//     "n * cdiv(p, ROWS) * cdiv(q, 16) < 2 ** 31",
//     """BYTES * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c + \
//        FRAGMENTS * cdiv(c * r * s, 16) * cdiv(k, 32) <= 220 * 1024""",
// ]
// compute_capability = "8.0"
//
// [define]
// C       = "c"
// R       = "r"
// S       = "s"
// OUTPUTS = "k"
// STRIDE  = "stride"
// BIAS    = "epilogue != 'none'"
// EPILOGUE = "epilogue"
//
// [[launch]]
// kernel = "conv2d_nhwc_few_channels_mma"
// grid   = ["min(n * cdiv(p, ROWS) * cdiv(q, 16 * TILES), 4 * sm_count)"]
// block  = ["32 * ROWS * (cdiv(k, 32) // GROUPS)"]
// shared = """FRAGMENTS * cdiv(c * r * s, 16) * cdiv(k, 32) + \
//             cdiv(BYTES * ((ROWS - 1) * stride + r) * ((16 * TILES - 1) * stride + s) * c, 16) * 16"""
//
// [variant.nhwc_few_channels_mma_bf16]
// title     = "nhwc, few input channels: bf16 mma.sync with filters and image rows in shared memory"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// tune      = { ROWS = [4, 2], TILES = [2, 1], GROUPS = [3, 2, 1] }
// where     = ["(ROWS, TILES, GROUPS) in ((4, 2, 3), (4, 2, 2), (4, 1, 1), (2, 2, 1))"]
// define    = { BYTES = "2", FRAGMENTS = "1024", OPERANDS = "'bf16'" }
//
// [variant.nhwc_few_channels_mma_f32]
// title     = "nhwc_few_channels_mma with float32 accuracy: TF32 products plus bf16 products of rounding errors"
// mechanism = ["operand_split"]
// product   = "tf32x3"
// requires  = ["c * r * s >= 4"]
// tune      = { ROWS = [4, 2], TILES = [2, 1], GROUPS = [3, 1] }
// where     = ["(ROWS, TILES, GROUPS) in ((4, 2, 3), (4, 1, 1), (2, 2, 1), (2, 1, 1))"]
// define    = { BYTES = "4", FRAGMENTS = "4096", OPERANDS = "'tf32_corrected' if c * r * s >= 100 else 'tf32x3'" }
// ///
//
// cp.async cannot copy 16 bytes of a first layer's windows: with 1 or 3 channels they are not aligned. A block keeps
// all filters in shared memory, in the order of the instruction's registers, with one load per mma tile, and computes
// many output tiles. For each output tile it stages the image once; floats are staged while the previous tile is
// written. Threads gather their operands from the staged image, at offsets from the window's corner that stay in
// registers. Channels are assigned so that a thread stores 16 contiguous bytes. For the accuracy of float32, filters
// are split once per block and the image once per window tile. The depth is short enough to leave all sums to the
// tensor core; if it is long enough, the two small products are in bf16 (see nhwc_mma_tf32_corrected). Limit: writing
// the output; for larger filters mma.sync and the gathering, eight loads of one element for a window tile of 16 x 16.

#include <opbench/activations.cuh>
#include <opbench/operands.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT>::T T;
constexpr int DEPTH = R * S * C, SLICES = (DEPTH + 15) / 16;  // an mma tile has a depth of 16
constexpr int ALL_GROUPS = (OUTPUTS + 31) / 32;               // a group has 32 output channels, four mma tiles
constexpr int WARPS_K = ALL_GROUPS / GROUPS, THREADS = 32 * ROWS * WARPS_K;
constexpr int NT = 4 * GROUPS;       // a warp has TILES x NT mma tiles
constexpr int COLUMNS = 16 * TILES;  // output pixels of a warp in each of the block's ROWS rows
constexpr int LINES = (ROWS - 1) * STRIDE + R, WIDTH = ((COLUMNS - 1) * STRIDE + S) * C;
constexpr int VEC = 16 / sizeof(T);
constexpr int PER_SM = sizeof(T) == 4 && TILES == 1;  // 0 is the compiler's choice: small tiles of floats spill with it

// The distance of an element of a pixel's window from the window's first element. Elements beyond the depth have zero
// weights and read the first element, which is always there.
__device__ __forceinline__ int offset_of(int element) {
    return element < DEPTH ? element / (S * C) * WIDTH + element % (S * C) : 0;
}
// The output channel of a mma tile's column: a thread's columns of VEC / 2 tiles make 16 contiguous bytes.
__device__ __forceinline__ int channel_of(int tile, int column) {
    return tile / (VEC / 2) * (4 * VEC) + column / 2 * VEC + tile % (VEC / 2) * 2 + column % 2;
}
// The index, from 0 to 15, of element v of the four that a thread of a quad has: in bf16 two pairs of neighbours, in
// tf32 elements that are four apart, two for each of two slices.
__device__ __forceinline__ int element_of(int quarter, int v) {
    return sizeof(T) == 2 ? v / 2 * 8 + quarter * 2 + v % 2 : v * 4 + quarter;
}
typedef Operands<OPERANDS> P;

// Copy an element to shared memory, a float without a register in between. If it is outside, write zero and read
// nothing.
__device__ __forceinline__ void copy(float* to, const float* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy(__nv_bfloat16* to, const __nv_bfloat16* from, bool inside) {
    *to = inside ? *from : __nv_bfloat16(0.0f);
}

// image [n][h][w][C], weight [OUTPUTS][R][S][C], bias [OUTPUTS], out [n][p][q][OUTPUTS]
// filters [SLICES][4 * ALL_GROUPS][32 lanes], tile [LINES][WIDTH]
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    conv2d_nhwc_few_channels_mma(const T* __restrict__ image, const T* __restrict__ weight,
#if BIAS
                                 const T* __restrict__ bias,
#endif
                                 T* __restrict__ out, int n, int c, int h, int w, int k, int r, int s, int stride,
                                 int padding) {
    extern __shared__ __align__(16) unsigned char memory[];
    P::Right* filters = reinterpret_cast<P::Right*>(memory);
    T* tile = reinterpret_cast<T*>(memory + sizeof(P::Right) * 32 * 4 * ALL_GROUPS * SLICES);
    const int p = (h + 2 * padding - R) / STRIDE + 1, q = (w + 2 * padding - S) / STRIDE + 1;
    const int tiles_q = (q + COLUMNS - 1) / COLUMNS, tiles_p = (p + ROWS - 1) / ROWS, tiles = n * tiles_p * tiles_q;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int row = warp / WARPS_K, first_tile = warp % WARPS_K * NT;  // this warp's row of the output and channels

    constexpr bool early = sizeof(T) == 4;  // copies of floats run by themselves, while filters and sums are made
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
                if (element < WIDTH) copy(tile + line * WIDTH + element, from + element, inside);
            }
        }
    };
    if (early) copy_tile(blockIdx.x);
#pragma unroll 4
    for (int e = thread; e < SLICES * 4 * ALL_GROUPS * 32; e += THREADS) {
        const int channel = channel_of(e / 32 % (4 * ALL_GROUPS), e % 32 / 4), slice = e / (4 * ALL_GROUPS * 32);
        T values[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            const int element = slice * 16 + element_of(e % 4, v);
            values[v] = channel < OUTPUTS && element < DEPTH ? weight[channel * DEPTH + element] : T(0.0f);
        }
        filters[e] = P::right(values);
    }
    // For each slice a thread needs four elements of a window; their offsets are the same for every pixel.
    int offset[SLICES][4];
#pragma unroll
    for (int e = 0; e < SLICES * 4; ++e) offset[e / 4][e % 4] = offset_of(e / 4 * 16 + element_of(lane % 4, e % 4));

    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const int q0 = index % tiles_q * COLUMNS, p0 = index / tiles_q % tiles_p * ROWS, ni = index / tiles_q / tiles_p;
        if (early) {
            asm volatile("cp.async.wait_all;\n" ::: "memory");
        } else {
            __syncthreads();  // all have read the tile before
            copy_tile(index);
        }
        __syncthreads();

        float sum[TILES][NT][4] = {};
        const T* window = tile + row * STRIDE * WIDTH + lane / 4 * STRIDE * C;
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            P::Left a[TILES];
#pragma unroll
            for (int mi = 0; mi < TILES; ++mi) {
                T values[2][4];  // of two windows, eight pixels apart
#pragma unroll
                for (int v = 0; v < 8; ++v)
                    values[v / 4][v % 4] = window[(mi * 16 + v / 4 * 8) * STRIDE * C + offset[slice][v % 4]];
                a[mi] = P::left(values);
            }
#pragma unroll
            for (int ni = 0; ni < NT; ++ni) {
                const P::Right b = filters[(slice * 4 * ALL_GROUPS + first_tile + ni) * 32 + lane];
#pragma unroll
                for (int mi = 0; mi < TILES; ++mi) P::multiply(sum[mi][ni], a[mi], b);
            }
        }
        if (early && index + (int)gridDim.x < tiles) {
            __syncthreads();  // all have read the tile
            copy_tile(index + gridDim.x);
        }

        const int yo = p0 + row;
        if (yo >= p) continue;
#pragma unroll
        for (int ti = 0; ti < NT; ti += VEC / 2) {
            const int channel = channel_of(first_tile + ti, lane % 4 * 2);
            float shift[VEC] = {};
#if BIAS
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
                    const float x = sum[half / 2][ti + v / 2][half % 2 * 2 + v % 2] + shift[v];
                    packed.elements[v] = T(apply_activation<activation_of::EPILOGUE>(x));
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
