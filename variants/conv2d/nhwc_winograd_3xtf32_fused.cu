// /// opbench
// title     = "Winograd's products, for 3 x 3 or 5 x 5, summed into the 2 x 2 outputs in registers, never written"
// builds_on = "nhwc_winograd_3xtf32"
// tune      = { BM = [128, 64], BN = [64, 32], STAGES = [4] }
// define.BIAS = "0 if epilogue == 'none' else 1"
// define.RELU = "1 if epilogue == 'bias_relu' else 0"
// define.VEC_K = "4 if k % 4 == 0 else 1"
// define.SIZE  = "r"
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == s and r in (3, 5) and stride == 1", "c % 4 == 0", "(k + BN) * c * 49 < 2 ** 31", "n * p * q < 2 ** 31",
//     "(49 if r == 5 else 16) * n * cdiv(p, 2) * cdiv(q, 2) * c <= 2 ** 30",
// ]
// precision = "f32"
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

constexpr int CHUNKS = 8, ROW = 128;      // chunks of 16 bytes, and bytes, of a tile's row
constexpr int BK = ROW / 4;               // channels of a step
constexpr int WM = 32, WN = 32;           // a warp's part of the block's tile
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int TM = WM / 16, TN = WN / 8;  // its mma tiles
constexpr int FILL_ROWS = THREADS / CHUNKS;
constexpr int STAGE = (BM + BN) * ROW;    // bytes: BM rows of patches, then BN rows of filters
constexpr int SLICES = BK / 8;            // an mma takes 8 channels
constexpr int PATCH = SIZE + 1;           // pixels under 2 outputs, in either direction
constexpr int POINTS = SIZE == 3 ? 4 : 7; // products for 2 outputs, in one direction

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 operator*(float a, float4 b) {
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

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
    if (i == 1) return d[1] + d[2];
    if (i == 5) return d[PATCH - 2];
    return i == 0 ? d[0] - d[2] : i == 2 ? d[2] - d[1] : i == 3 ? d[1] - d[3]
         : i == 4 ? d[3] - d[PATCH - 2] : d[PATCH - 1] - d[PATCH - 2];
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

// 16 bytes to shared memory without a register in between; zeros where `bytes` is 0, and then nothing is read.
__device__ __forceinline__ void copy_chunk(unsigned to, const float* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}
// sum += a * b on 16 x 8 x 8 tf32: floats of which the tensor core takes the upper 19 bits
__device__ __forceinline__ void multiply_tile(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// x = big + small, both to tf32's 11 digits: 22 of a float's 24. The tensor core ignores the lower 13 bits of either.
__device__ __forceinline__ void split(const unsigned (&x)[4], unsigned (&big)[4], unsigned (&small)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        big[e] = (x[e] + 0x1000u) & 0xffffe000u;
        small[e] = __float_as_uint(__uint_as_float(x[e]) - __uint_as_float(big[e])) + 0x1000u;
    }
}
// Products with a small factor go first; small * small is below a float's last digit.
__device__ __forceinline__ void multiply(const unsigned (&a)[TM][4], const unsigned (&b)[TN / 2][4],
                                         float (&sum)[TM][TN][4]) {
    unsigned b_big[TN / 2][4], b_small[TN / 2][4];
#pragma unroll
    for (int ni = 0; ni < TN / 2; ++ni) split(b[ni], b_big[ni], b_small[ni]);
#pragma unroll
    for (int mi = 0; mi < TM; ++mi) {
        unsigned big[4], small[4];
        split(a[mi], big, small);
#pragma unroll
        for (int ni = 0; ni < TN; ++ni)
            multiply_tile(sum[mi][ni], small, b_big[ni / 2][ni % 2 * 2], b_big[ni / 2][ni % 2 * 2 + 1]);
#pragma unroll
        for (int ni = 0; ni < TN; ++ni)
            multiply_tile(sum[mi][ni], big, b_small[ni / 2][ni % 2 * 2], b_small[ni / 2][ni % 2 * 2 + 1]);
#pragma unroll
        for (int ni = 0; ni < TN; ++ni)
            multiply_tile(sum[mi][ni], big, b_big[ni / 2][ni % 2 * 2], b_big[ni / 2][ni % 2 * 2 + 1]);
    }
}

// Where the 2 x 2 outputs of a tile lie.
struct __align__(8) Pixels {
    int first;       // the upper left one's number in the output
    unsigned inside; // bit 2 i + j: row i, column j exists
};

__device__ __forceinline__ Pixels find_pixels(int tile, int tiles, int p, int q) {
    if (tile >= tiles) return {0, 0};
    const int rows = (p + 1) / 2, columns = (q + 1) / 2;
    const int x = tile % columns * 2, y = tile / columns % rows * 2;
    const unsigned row = x + 1 < q ? 3 : 1;
    return {(tile / columns / rows * p + y) * q + x, y + 1 < p ? row | row << 2 : row};
}

// patches [POINTS][POINTS][tiles][c], filters [POINTS][POINTS][k][c], bias [k] -> out [n][p][q][k]: At m A, m the
// products of patches and filters
extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
    conv2d_winograd_outputs(const float* __restrict__ patches, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int k, int c, int p, int q) {
    extern __shared__ __align__(16) unsigned char stages[];
    __shared__ Pixels pixels[BM];
    const int tiles = n * ((p + 1) / 2) * ((q + 1) / 2);
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of patches, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (int row = thread; row < BM; row += THREADS) pixels[row] = find_pixels(m0 + row, tiles, p, q);

    // Each thread fills one chunk of every FILL_ROWS-th row. The chunks of a row are permuted by its number, so that
    // neither copies nor ldmatrix meet bank conflicts.
    const int chunk = thread % CHUNKS, fill_row = thread / CHUNKS;
    const float* a_from = patches + (size_t)(m0 + fill_row) * c + chunk * 4;
    const float* b_from = filters + (size_t)(n0 + fill_row) * c + chunk * 4;
    const int a_left = tiles - m0 - fill_row, b_left = k - n0 - fill_row;
    const int steps_c = (c + BK - 1) / BK, row_step = FILL_ROWS * c;
    const long long a_next = (long long)tiles * c - steps_c * BK, b_next = (long long)k * c - steps_c * BK;
    const unsigned shared = (unsigned)__cvta_generic_to_shared(stages);
    const unsigned fill_to = shared + fill_row * ROW + (chunk ^ fill_row % 8) * 16;
    int fill_c = 0, fills = POINTS * POINTS * steps_c;  // first channel of the next step to fill; steps left to fill
    auto fill = [&](int slot) {
        if (fills-- <= 0) return;
        const unsigned to = fill_to + slot * STAGE;
        const bool exists = fill_c + chunk * 4 < c;
#pragma unroll
        for (int l = 0; l < BM / FILL_ROWS; ++l)
            copy_chunk(to + l * FILL_ROWS * ROW, a_from + l * row_step, exists && l * FILL_ROWS < a_left ? 16 : 0);
#pragma unroll
        for (int l = 0; l < BN / FILL_ROWS; ++l)
            copy_chunk(to + (BM + l * FILL_ROWS) * ROW, b_from + l * row_step,
                       exists && l * FILL_ROWS < b_left ? 16 : 0);
        a_from += BK, b_from += BK, fill_c += BK;
        if (fill_c >= c) a_from += a_next, b_from += b_next, fill_c = 0;
    };

    // Lane l gives ldmatrix the address of one chunk of a slice: in row l % 16 of 16 patches, in row
    // l % 8 + l / 16 * 8 of 16 filters.
    const int m_warp = warp / WARPS_N * WM, n_warp = warp % WARPS_N * WN;
    const unsigned a_lane = (m_warp + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16;
    const unsigned b_lane = (BM + n_warp + lane % 8 + lane / 16 * 8) * ROW + (lane / 8 % 2 ^ lane % 8) * 16;

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fill(stage);
        commit();
    }
    wait<STAGES - 2>();
    __syncthreads();
    float sum[4][TM][TN][4] = {};  // of the outputs 2 i + j
    int slot = 0, free_slot = STAGES - 1;
#pragma unroll 1
    for (int product = 0; product < POINTS * POINTS; ++product) {
        float factors[4];
#pragma unroll
        for (int output = 0; output < 4; ++output)
            factors[output] =
                output_factor(output / 2, product / POINTS) * output_factor(output % 2, product % POINTS);
#pragma unroll 1
        for (int step = 0; step < steps_c; ++step) {
            fill(free_slot);
            commit();
            free_slot = free_slot == STAGES - 1 ? 0 : free_slot + 1;
            // The tensor core cuts digits off its running sum: it keeps one for a step of 32 only.
            float part[TM][TN][4] = {};
            const unsigned from = shared + slot * STAGE;
#pragma unroll
            for (int slice = 0; slice < SLICES; ++slice) {
                unsigned a[TM][4], b[TN / 2][4];
#pragma unroll
                for (int mi = 0; mi < TM; ++mi) load_matrices(a[mi], from + (a_lane ^ slice * 32) + mi * 16 * ROW);
#pragma unroll
                for (int ni = 0; ni < TN / 2; ++ni) load_matrices(b[ni], from + (b_lane ^ slice * 32) + ni * 16 * ROW);
                multiply(a, b, part);
            }
#pragma unroll
            for (int output = 0; output < 4; ++output)
#pragma unroll
                for (int e = 0; e < TM * TN * 4; ++e)
                    sum[output][e / 4 / TN][e / 4 % TN][e % 4] += factors[output] * part[e / 4 / TN][e / 4 % TN][e % 4];
            wait<STAGES - 2>();
            __syncthreads();
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
    }

    // Through shared memory, 16 tiles of a warp at a time, so that 16-byte stores cover whole lines of the output.
    constexpr int PITCH = WN + 8, PER_ROW = WN / VEC_K;
    wait<0>();
    __syncthreads();
    float* staged = reinterpret_cast<float*>(stages) + warp * 16 * PITCH;
    float shift[TN][2] = {};
#if BIAS
#pragma unroll
    for (int e = 0; e < TN * 2; ++e) {
        const int ko = n0 + n_warp + e / 2 * 8 + lane % 4 * 2 + e % 2;
        shift[e / 2][e % 2] = ko < k ? bias[ko] : 0.0f;
    }
#endif
#pragma unroll
    for (int part = 0; part < TM * 4; ++part) {
        const int mi = part / 4, output = part % 4;
#pragma unroll
        for (int e = 0; e < TN * 2; ++e) {
            const int ni = e / 2, half = e % 2;
            float first = sum[output][mi][ni][half * 2] + shift[ni][0];
            float second = sum[output][mi][ni][half * 2 + 1] + shift[ni][1];
#if RELU
            first = fmaxf(first, 0.0f), second = fmaxf(second, 0.0f);
#endif
            float* to = staged + (lane / 4 + half * 8) * PITCH + ni * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(first, second);
        }
        __syncwarp();
#pragma unroll 4
        for (int e = lane; e < 16 * PER_ROW; e += 32) {
            const Pixels at = pixels[m_warp + mi * 16 + e / PER_ROW];
            const int ko = n0 + n_warp + e % PER_ROW * VEC_K;
            if (!(at.inside >> output & 1) || ko >= k) continue;
            const float* from = staged + e / PER_ROW * PITCH + e % PER_ROW * VEC_K;
            float* to = out + ((size_t)(at.first + output / 2 * q + output % 2) * k + ko);
#if VEC_K == 4
            *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
#else
            *to = *from;
#endif
        }
        __syncwarp();
    }
}
