// /// opbench
// title     = "Winograd's patches transformed between shared memory and registers: no workspace but the filters'"
// builds_on = "nhwc_winograd_3xtf32_fused"
// tune      = { BN = [64, 128], STAGES = [2, 4] }
// where     = ["STAGES == (2 if BN == 64 else 4)"]  # two blocks per multiprocessor, or one
// define    = { BIAS = "epilogue != 'none'", RELU = "epilogue == 'bias_relu'" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 8 == 0", "16 * (k + BN) * c < 2 ** 31", "n * p * q < 2 ** 31",
// ]
// precision = "f32"
// product   = "tf32x3"
// compute_capability = "8.0"
// workspace = { filters = "16 * k * c" }
//
// [[launch]]
// kernel = "conv2d_winograd_filters"
// grid   = ["cdiv(k * c // 4, 128)"]
// block  = [128]
// args   = ["weight", "filters", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["n * cdiv(p, 16) * cdiv(q, 16) * cdiv(k, BN)"]
// block  = ["2 * BN"]
// shared = "2 * 18 * 18 * 36 * 4 + STAGES * BN * 128"
// args   = ["image", "filters", "bias?", "out", "n", "c", "h", "w", "k", "p", "q", "padding"]
// ///
//
// The patches' workspace is four times the image, written and read. Here a block keeps 18 x 18 pixels of 32 channels in
// shared memory, those of 16 x 16 outputs, and each warp makes the operands of its matrix instructions of four pixels,
// by three additions, once per product; the next 32 channels arrive meanwhile. Limited by mma.sync's tf32 rate and by
// shared memory, busy half of that time; outputs that 16 does not divide waste rows of the blocks. Ideas: Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), which fuses all steps, too.

#include <opbench/products.cuh>
#include <opbench/stages.cuh>
#include <opbench/winograd.cuh>
using namespace opbench;

typedef Product<PRODUCT> P;
typedef Block<P, 64, BN, 32, 32, STAGES> Tile;  // of tiles of 2 x 2 outputs, 8 x 8 a block; stages of filters alone
constexpr int TILES = 8;
constexpr int SIDE = 2 * TILES + 2;  // pixels under them
constexpr int PITCH = Tile::bk + 4;  // floats between pixels: 4 tiles' 8-byte loads meet no bank conflict
constexpr int IMAGE = SIDE * SIDE * PITCH, COPIES = SIDE * SIDE * chunks;
constexpr int COPIES_PER_STEP = 256;  // of the next pixels: done before the last STAGES steps of 16
static_assert(COPIES <= COPIES_PER_STEP * (16 - STAGES) && COPIES_PER_STEP % Tile::threads == 0, "they arrive in time");
constexpr int STAGE = BN * row_bytes;

// weight [k][3][3][c] -> filters [4][4][k][c]; a thread has four channels of one filter. Of 8 channels the even ones
// come first, as they meet those of two neighbouring ones that a thread loads at once.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    const int quads = c / 4, index = (int)(blockIdx.x * 128 + threadIdx.x);
    if (index >= k * quads) return;
    const float4* from = reinterpret_cast<const float4*>(weight) + (size_t)(index / quads) * 9 * quads + index % quads;
    float2* to = reinterpret_cast<float2*>(filters) + index / 2 * 4 + index % 2;
    transform_filter(from, quads, [&](int product, float4 value) {
        to[(size_t)product * k * quads * 2] = make_float2(value.x, value.z);
        to[(size_t)product * k * quads * 2 + 2] = make_float2(value.y, value.w);
    });
}

// One of the 4 x 4 products as rows or columns of Bt = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1] and
// At = [1 1 1 0; 0 1 -1 -1] give it: pixels first + sign * second, and the factors of its two outputs.
struct Line {
    int first, second;
    float sign, factors[2];
};
__device__ __forceinline__ Line line(int i) {
    return {i == 3 ? 1 : i,
            i < 2    ? 2
            : i == 2 ? 1
                     : 3,
            i == 1 ? 1.0f : -1.0f,
            {i < 3 ? 1.0f : 0.0f, i == 0   ? 0.0f
                                  : i == 1 ? 1.0f
                                           : -1.0f}};
}

// image [n][h][w][c], filters [4][4][k][c], bias [k] -> out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(Tile::threads, 256 / Tile::threads)
    conv2d_winograd_outputs(const float* __restrict__ image, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int c, int h, int w, int k, int p, int q, int padding) {
    extern __shared__ __align__(16) float pixels[];  // [2][SIDE][SIDE][PITCH], then [STAGES][BN] rows of filters
    const int tiles_k = (k + BN - 1) / BN;           // neighbouring blocks share their pixels
    const int blocks_x = (q + 15) / 16, blocks_y = (p + 15) / 16, block = (int)(blockIdx.x / tiles_k);
    const int n0 = (int)(blockIdx.x % tiles_k) * BN, picture = block / blocks_x / blocks_y;
    const int out_x = block % blocks_x * 16, out_y = block / blocks_x % blocks_y * 16;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int parts = (c + Tile::bk - 1) / Tile::bk;  // of the channels

    const unsigned shared = (unsigned)__cvta_generic_to_shared(pixels);
    auto copy_pixel = [&](int index, int chunk) {  // four channels of one
        const int pixel = index / chunks, channel = chunk * Tile::bk + index % chunks * 4;
        const int y = out_y - padding + pixel / SIDE, x = out_x - padding + pixel % SIDE;
        const bool inside = y >= 0 && y < h && x >= 0 && x < w && channel < c;
        copy_chunk(shared + (chunk % 2 * IMAGE + pixel * PITCH + index % chunks * 4) * 4,
                   image + ((((long long)picture * h + y) * w + x) * c + channel), inside ? 16 : 0);
    };

    // Each thread fills one chunk of every fill_rows-th row.
    const int fill_row = thread / chunks, fill_chunk = thread % chunks;
    const unsigned stages = shared + 2 * IMAGE * 4, fill_to = stages + place(fill_row, fill_chunk);
    auto fill = [&](int slot, int step) {
        const int product = step % 16, channel = step / 16 * Tile::bk + fill_chunk * 4;
        const float* from = filters + ((size_t)product * k + n0 + fill_row) * c + channel;
#pragma unroll
        for (int l = 0; l < BN / Tile::fill_rows; ++l)
            copy_chunk(fill_to + slot * STAGE + l * Tile::fill_rows * row_bytes, from + l * Tile::fill_rows * c,
                       channel < c && n0 + fill_row + l * Tile::fill_rows < k ? 16 : 0);
    };

    // Rows of a matrix instruction's first operand are tiles: lane / 4 is their column, 8 rows lower their next line.
    const int m_warp = warp / Tile::warps_n * 32, n_warp = warp % Tile::warps_n * 32;
    const int a_lane = (m_warp / TILES * 2 * SIDE + lane / 4 * 2) * PITCH + lane % 4 * 2;
    // Lane l gives ldmatrix the address of one chunk of a slice: in row l % 8 + l / 16 * 8 of 16 filters.
    const unsigned b_lane = place(n_warp + lane % 8 + lane / 16 * 8, lane / 8 % 2);

    for (int index = thread; index < COPIES; index += Tile::threads) copy_pixel(index, 0);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fill(stage, stage);
        commit();
    }
    wait<STAGES - 2>();
    __syncthreads();
    Tile::Sums sum[4] = {};  // of the outputs 2 i + j
#pragma unroll 1
    for (int step = 0; step < 16 * parts; ++step) {
        const int chunk = step / 16, product = step % 16;
        if (step + STAGES - 1 < 16 * parts) fill((step + STAGES - 1) % STAGES, step + STAGES - 1);
        if (chunk + 1 < parts)
#pragma unroll
            for (int l = 0; l < COPIES_PER_STEP; l += Tile::threads)
                if (product * COPIES_PER_STEP + l + thread < COPIES)
                    copy_pixel(product * COPIES_PER_STEP + l + thread, chunk + 1);
        commit();

        const Line row = line(product / 4), column = line(product % 4);
        const float* upper = pixels + chunk % 2 * IMAGE + a_lane + row.first * SIDE * PITCH;
        const float* lower = upper + (row.second - row.first) * SIDE * PITCH;
        const int first = column.first * PITCH, second = column.second * PITCH;
        auto combine = [&](int offset) {
            const float2 a = *reinterpret_cast<const float2*>(upper + first + offset);
            const float2 b = *reinterpret_cast<const float2*>(upper + second + offset);
            const float2 d = *reinterpret_cast<const float2*>(lower + first + offset);
            const float2 e = *reinterpret_cast<const float2*>(lower + second + offset);
            return make_float2(a.x + column.sign * b.x + row.sign * (d.x + column.sign * e.x),
                               a.y + column.sign * b.y + row.sign * (d.y + column.sign * e.y));
        };
        // The tensor core cuts digits off its running sum: it keeps one for a step of 32 only.
        Tile::Sums part = {};
        const unsigned from = stages + step % STAGES * STAGE;
#pragma unroll
        for (int slice = 0; slice < Tile::slices; ++slice) {
            Tile::A a[1];
            Tile::B b[1];
#pragma unroll
            for (int ni = 0; ni < Tile::tn / 2; ++ni)
                load_matrices(b[0][ni], from + (b_lane ^ slice * 32) + ni * 16 * row_bytes);
#pragma unroll
            for (int half = 0; half < Tile::tm * 2; ++half) {
                const float2 found = combine(half * 2 * SIDE * PITCH + slice * 8);
                a[0][half / 2][half % 2] = __float_as_uint(found.x);
                a[0][half / 2][half % 2 + 2] = __float_as_uint(found.y);
            }
            P::multiply(a, b, part);
        }
#pragma unroll
        for (int output = 0; output < 4; ++output) {
            const float factor = row.factors[output / 2] * column.factors[output % 2];
#pragma unroll
            for (int e = 0; e < Tile::tm * Tile::tn * 4; ++e)
                sum[output][e / 4 / Tile::tn][e / 4 % Tile::tn][e % 4] +=
                    factor * part[e / 4 / Tile::tn][e / 4 % Tile::tn][e % 4];
        }
        wait<STAGES - 2>();
        __syncthreads();
    }

    wait<0>();
    __syncthreads();
#if !BIAS
    const float* bias = nullptr;
#endif
    store_outputs<Tile, BIAS, RELU>(sum, pixels, out, bias, n0 + n_warp, k, [&](int row, int output) {
        const int tile = m_warp + row;
        const int y = out_y + tile / TILES * 2 + output / 2, x = out_x + tile % TILES * 2 + output % 2;
        return y < p && x < q ? (picture * p + y) * q + x : -1;
    });
}
