// /// opbench
// title     = "Winograd's products, for 3 x 3 or 5 x 5, summed into the 2 x 2 outputs in registers, never written"
// builds_on = "nhwc_winograd_3xtf32"
// tune      = { BM = [128, 64], BN = [64, 32], STAGES = [4] }
// define    = { SIZE = "r", BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == s and r in (3, 5) and stride == 1", "c % 4 == 0", "(k + BN) * c * 49 < 2 ** 31", "n * p * q < 2 ** 31",
//     "(49 if r == 5 else 16) * n * cdiv(p, 2) * cdiv(q, 2) * c <= 2 ** 30",
// ]
// product   = "tf32x3"
// compute_capability = "8.0"
//
// [workspace]
// filters = "(49 if r == 5 else 16) * k * c"
// patches = "(49 if r == 5 else 16) * n * cdiv(p, 2) * cdiv(q, 2) * c"
//
// [[launch]]
// kernel = "conv2d_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_winograd_patches"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2) * c // 4, 128)"]
// block  = [128]
// args   = ["image", "patches", "n", "c", "h", "w", "cdiv(p, 2)", "cdiv(q, 2)", "padding"]
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2), BM) * cdiv(k, BN)"]
// block  = ["BM * BN // 32"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "bias?", "out", "n", "k", "c", "p", "q"]
// ///
//
// The 2 x 2 outputs are sums of the sixteen products with factors 1, 0 and -1, so a block computes all sixteen of its
// tiles one after the other and adds each step's sums to the outputs at once: four sums per product in place of one,
// within 32 x 32 tiles per warp, and the products' traffic, eight times the output, is gone. Limited by mma.sync's tf32
// rate, eight warps per multiprocessor, and the patches' traffic where channels are few; with few tiles blocks run out,
// of which the rung below has sixteen times as many. A filter of 5 is one of 3 beside one of 2, in either direction:
// 4 + 3 products for 2 outputs, 49 in place of 100 for 2 x 2, and whole numbers still stay exact. Ideas: as the rung
// below, and Winograd's nesting of short filters; summing in registers is our own.

#include <opbench/matrix_rows.cuh>
#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd.cuh>
using namespace opbench;

typedef Block<Product<PRODUCT>, BM, BN, 32, 32, STAGES> Tile;
constexpr int PATCH = SIZE + 1;            // pixels under 2 outputs, in either direction
constexpr int POINTS = SIZE == 3 ? 4 : 7;  // products for 2 outputs, in one direction

// One direction: products of (G g)[i] and (Bt d)[i], outputs (At m); the first four points are those of a filter of 3,
// the others those of a filter of 2, which is moved by 3.
// G = [1 0 0 0 0; 1/2 1/2 1/2 0 0; 1/2 -1/2 1/2 0 0; 0 0 1 0 0; 0 0 0 1 0; 0 0 0 1 1; 0 0 0 0 1]
__device__ __forceinline__ float4 filter_point(int i, const float4 (&g)[SIZE]) {
    if (i == 1) return 0.5f * (g[0] + g[2]) + 0.5f * g[1];
    if (i == 2) return 0.5f * (g[0] + g[2]) - 0.5f * g[1];
    if (i == 5) return g[SIZE - 2] + g[SIZE - 1];
    return i == 0 ? g[0] : i == 3 ? g[2] : i == 4 ? g[SIZE - 2] : g[SIZE - 1];
}
// Bt = [1 0 -1 0 0 0; 0 1 1 0 0 0; 0 -1 1 0 0 0; 0 1 0 -1 0 0; 0 0 0 1 -1 0; 0 0 0 0 1 0; 0 0 0 0 -1 1]
__device__ __forceinline__ float4 patch_point(int i, const float4 (&d)[PATCH]) {
    if (i == 0) return d[0] - d[2];
    if (i == 1) return d[1] + d[2];
    if (i == 2) return d[2] - d[1];
    if (i == 3) return d[1] - d[3];
    if (i == 4) return d[3] - d[PATCH - 2];
    return i == 5 ? d[PATCH - 2] : d[PATCH - 1] - d[PATCH - 2];
}
// At = [1 1 1 0 1 1 0; 0 1 -1 -1 0 1 1]
__device__ __forceinline__ float output_factor(int output, int i) {
    return output == 0 ? (0x37 >> i & 1) : (0x62 >> i & 1) - (0x0c >> i & 1);
}

// weight [k][SIZE][SIZE][c] -> filters [POINTS][POINTS][k][c]: G g Gt; a thread has four channels of one filter.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    const int quads = c / 4, index = (int)(blockIdx.x * 128 + threadIdx.x);
    if (index >= k * quads) return;
    const size_t first = (size_t)(index / quads) * SIZE * SIZE * quads + index % quads;
    const float4* from = reinterpret_cast<const float4*>(weight) + first;
    float4 rows[POINTS][SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        float4 column[SIZE];
#pragma unroll
        for (int i = 0; i < SIZE; ++i) column[i] = from[(i * SIZE + j) * quads];
#pragma unroll
        for (int i = 0; i < POINTS; ++i) rows[i][j] = filter_point(i, column);
    }
    float4* to = reinterpret_cast<float4*>(filters) + index;
#pragma unroll
    for (int i = 0; i < POINTS; ++i)
#pragma unroll
        for (int j = 0; j < POINTS; ++j) to[(size_t)(i * POINTS + j) * k * quads] = filter_point(j, rows[i]);
}

// image [n][h][w][c] -> patches [POINTS][POINTS][n][rows][columns][c]: Bt d B for the pixels d under each 2 x 2
// outputs; a thread has four channels of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_patches(const float* __restrict__ image, float* __restrict__ patches, int n, int c, int h, int w,
                            int rows, int columns, int padding) {
    const int quads = c / 4, index = (int)(blockIdx.x * 128 + threadIdx.x), tiles = n * rows * columns;
    if (index >= tiles * quads) return;
    const int tile = index / quads, quad = index % quads;
    const int x0 = tile % columns * 2 - padding, y0 = tile / columns % rows * 2 - padding;
    const size_t first = (size_t)(tile / columns / rows) * h * w * quads + quad;
    const float4* from = reinterpret_cast<const float4*>(image) + first;
    float4 pixels[PATCH][PATCH];  // columns of the patch
#pragma unroll
    for (int j = 0; j < PATCH; ++j)
#pragma unroll
        for (int i = 0; i < PATCH; ++i) {
            const int y = y0 + i, x = x0 + j;
            const bool inside = y >= 0 && y < h && x >= 0 && x < w;
            pixels[j][i] = inside ? from[((size_t)y * w + x) * quads] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    float4* to = reinterpret_cast<float4*>(patches) + index;
#pragma unroll
    for (int i = 0; i < POINTS; ++i) {
        float4 row[PATCH];
#pragma unroll
        for (int j = 0; j < PATCH; ++j) row[j] = patch_point(i, pixels[j]);
#pragma unroll
        for (int j = 0; j < POINTS; ++j) to[(size_t)(i * POINTS + j) * tiles * quads] = patch_point(j, row);
    }
}

// Where a tile's 2 x 2 outputs lie: x: the upper left one's number; y, bit 2 i + j: row i, column j exists.
__device__ __forceinline__ int2 find_pixels(int tile, int n, int p, int q) {
    const int rows = (p + 1) / 2, columns = (q + 1) / 2;
    if (tile >= n * rows * columns) return {0, 0};
    const int x = tile % columns * 2, y = tile / columns % rows * 2;
    const int row = x + 1 < q ? 3 : 1;
    return {(tile / columns / rows * p + y) * q + x, y + 1 < p ? row | row << 2 : row};
}

// Rows of patches and filters, of one product after the other.
struct AllRows : MatrixRows<Tile, true> {
    static constexpr bool endless = false;
    int c, channel = 0;  // the first of the next step
    long long a_next, b_next;

    __device__ __forceinline__ AllRows(const MatrixRows& first, int tiles, int k, int c, int steps)
        : MatrixRows(first), c(c), a_next((long long)tiles * c - steps * Tile::bk),
          b_next((long long)k * c - steps * Tile::bk) {}
    __device__ __forceinline__ void operator()(int slot) {
        MatrixRows::operator()(slot);
        channel += Tile::bk;
        if (channel >= c) a.from += a_next, b.from += b_next, left += channel, channel = 0;
    }
};

// patches [POINTS][POINTS][tiles][c], filters [POINTS][POINTS][k][c], bias [k] -> out [n][p][q][k]: At m A
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_winograd_outputs(const float* __restrict__ patches, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int k, int c, int p, int q) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ int2 pixels[BM];
    const int tiles = n * ((p + 1) / 2) * ((q + 1) / 2);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of patches, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    for (int row = threadIdx.x; row < BM; row += Tile::threads) pixels[row] = find_pixels(m0 + row, n, p, q);

    const int steps = (c + Tile::bk - 1) / Tile::bk;
    AllRows rows({shared, patches, filters, m0, n0, tiles, k, c, 0, c}, tiles, k, c, steps);
    const Warp<Tile> warp;
    Tile::Sums part = {}, sum[4] = {};  // of the outputs 2 i + j
    float factors[4] = {1.0f, 0.0f, 0.0f, 0.0f};
    int product = 0, step = 0;  // that the factors are of
    multiply_parts<Tile, false, false>(part, shared, POINTS * POINTS * steps, warp, rows, [&] {
#pragma unroll
        for (int e = 0; e < 4 * Tile::tm * Tile::tn; ++e) {
            float& own = part[e / 4 / Tile::tn][e / 4 % Tile::tn][e % 4];
#pragma unroll
            for (int output = 0; output < 4; ++output)
                sum[output][e / 4 / Tile::tn][e / 4 % Tile::tn][e % 4] += factors[output] * own;
            own = 0.0f;
        }
        if (++step < steps) return;
        step = 0, ++product;
#pragma unroll
        for (int output = 0; output < 4; ++output)
            factors[output] = output_factor(output / 2, product / POINTS) * output_factor(output % 2, product % POINTS);
    });
#if !BIAS
    const float* bias = nullptr;
#endif
    store_outputs<Tile, BIAS, RELU>(sum, shared, out, bias, n0 + warp.n, k, [&](int row, int output) {
        const int2 at = pixels[warp.m + row];
        return at.y >> output & 1 ? at.x + output / 2 * q + output % 2 : -1;
    });
}
