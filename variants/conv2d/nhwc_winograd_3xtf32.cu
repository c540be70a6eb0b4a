// /// opbench
// title     = "Winograd's F(2x2, 3x3): sixteen tf32/3 matrix products in place of nine times four"
// builds_on = "nhwc_mma_3xtf32"
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 4] }
// where     = ["BM >= BN", "STAGES == (3 if BM == 128 and BN == 64 else 4)"]
// define.BIAS = "0 if epilogue == 'none' else 1"
// define.RELU = "1 if epilogue == 'bias_relu' else 0"
// define.VEC_K = "4 if k % 4 == 0 else 1"
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r == 3 and s == 3 and stride == 1", "c % 4 == 0", "16 * n * cdiv(p, 2) * cdiv(q, 2) * max(c, k) <= 2 ** 30",
//     "16 * (k + BN) * c < 2 ** 31",
// ]
// precision = "f32"
// product   = "tf32x3"
// compute_capability = "8.0"
//
// [workspace]
// filters  = "16 * k * c"
// patches  = "16 * n * cdiv(p, 2) * cdiv(q, 2) * c"
// products = "16 * n * cdiv(p, 2) * cdiv(q, 2) * k"
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
// kernel = "conv2d_winograd_products"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2), BM) * cdiv(k, BN)", "16"]
// block  = ["32 * (BM // (32 if BM == 64 else 64)) * (BN // 32)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["patches", "filters", "products", "n * cdiv(p, 2) * cdiv(q, 2)", "k", "c"]
//
// [[launch]]
// kernel = "conv2d_winograd_outputs"
// grid   = ["cdiv(n * cdiv(p, 2) * cdiv(q, 2) * k // (4 if k % 4 == 0 else 1), 128)"]
// block  = [128]
// args   = ["products", "bias?", "out", "n", "k", "p", "q"]
// ///
//
// 2 x 2 outputs of a 3 x 3 filter depend on a 4 x 4 patch. Once patch and filter are transformed, 16 products and a sum
// over the channels replace 36: 2.25 times fewer for the tensor cores, which limit the rung below. The transforms only
// add, subtract and halve, so that whole numbers stay exact (larger tiles divide by 3). Limited by mma.sync's tf32 rate
// and by the traffic of the transformed patches and products, four times the image and the output, each written
// and read: little for the many channels of deep layers, too much for 64. Ideas: Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks" (2015); three products as in CUTLASS example 28.

constexpr int CHUNKS = 8, ROW = 128;      // chunks of 16 bytes, and bytes, of a tile's row
constexpr int BK = ROW / 4;               // channels of a step
constexpr int WM = BM == 64 ? 32 : 64;    // a warp's part of the block's tile
constexpr int WN = 32;
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int TM = WM / 16, TN = WN / 8;  // its mma tiles
constexpr int FILL_ROWS = THREADS / CHUNKS;
constexpr int STAGE = (BM + BN) * ROW;    // bytes: BM rows of patches, then BN rows of filters
constexpr int SLICES = BK / 8;            // an mma takes 8 channels

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 operator*(float a, float4 b) {
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

// weight [k][3][3][c] -> filters [4][4][k][c]: G g Gt with G = [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1]
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_filters(const float* __restrict__ weight, float* __restrict__ filters, int k, int c) {
    const int quads = c / 4, index = (int)(blockIdx.x * 128 + threadIdx.x);
    if (index >= k * quads) return;
    const float4* from = reinterpret_cast<const float4*>(weight) + (size_t)(index / quads) * 9 * quads + index % quads;
    float4 columns[4][3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const float4 g0 = from[j * quads], g1 = from[(3 + j) * quads], g2 = from[(6 + j) * quads];
        const float4 outer = 0.5f * (g0 + g2), inner = 0.5f * g1;
        columns[0][j] = g0, columns[1][j] = outer + inner, columns[2][j] = outer - inner, columns[3][j] = g2;
    }
    float4* to = reinterpret_cast<float4*>(filters) + index;
    const size_t next = (size_t)k * quads;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 outer = 0.5f * (columns[i][0] + columns[i][2]), inner = 0.5f * columns[i][1];
        to[(i * 4) * next] = columns[i][0];
        to[(i * 4 + 1) * next] = outer + inner;
        to[(i * 4 + 2) * next] = outer - inner;
        to[(i * 4 + 3) * next] = columns[i][2];
    }
}

// image [n][h][w][c] -> patches [4][4][n][rows][columns][c]: Bt d B with Bt = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]
// for the 4 x 4 pixels d under each 2 x 2 outputs; a thread has four channels of one patch.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_patches(const float* __restrict__ image, float* __restrict__ patches, int n, int c, int h, int w,
                            int rows, int columns, int padding) {
    const int quads = c / 4, index = (int)(blockIdx.x * 128 + threadIdx.x), tiles = n * rows * columns;
    if (index >= tiles * quads) return;
    const int tile = index / quads, quad = index % quads;
    const int x0 = tile % columns * 2 - padding, y0 = tile / columns % rows * 2 - padding;
    const size_t first = (size_t)(tile / columns / rows) * h * w * quads + quad;
    const float4* from = reinterpret_cast<const float4*>(image) + first;
    float4 d[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int y = y0 + i, x = x0 + j;
            const bool inside = y >= 0 && y < h && x >= 0 && x < w;
            d[i][j] = inside ? from[((size_t)y * w + x) * quads] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float4 d1 = d[1][j];
        d[0][j] = d[0][j] - d[2][j];
        d[1][j] = d1 + d[2][j];
        d[2][j] = d[2][j] - d1;
        d[3][j] = d1 - d[3][j];
    }
    float4* to = reinterpret_cast<float4*>(patches) + index;
    const size_t next = (size_t)tiles * quads;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[(i * 4) * next] = d[i][0] - d[i][2];
        to[(i * 4 + 1) * next] = d[i][1] + d[i][2];
        to[(i * 4 + 2) * next] = d[i][2] - d[i][1];
        to[(i * 4 + 3) * next] = d[i][1] - d[i][3];
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

// patches [16][tiles][c], filters [16][k][c] -> products [16][tiles][k], one of the 16 per blockIdx.y
extern "C" __global__ void __launch_bounds__(THREADS, BN == 128 ? 1 : BM == 128 ? 2 : 3)
    conv2d_winograd_products(const float* __restrict__ patches, const float* __restrict__ filters,
                             float* __restrict__ products, int tiles, int k, int c) {
    extern __shared__ __align__(16) unsigned char stages[];
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of patches, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    // Each thread fills one chunk of every FILL_ROWS-th row. The chunks of a row are permuted by its number, so that
    // neither copies nor ldmatrix meet bank conflicts.
    const int chunk = thread % CHUNKS, fill_row = thread / CHUNKS;
    const float* a_from = patches + ((size_t)blockIdx.y * tiles + m0 + fill_row) * c + chunk * 4;
    const float* b_from = filters + ((size_t)blockIdx.y * k + n0 + fill_row) * c + chunk * 4;
    const int a_left = tiles - m0 - fill_row, b_left = k - n0 - fill_row;
    int c_left = c - chunk * 4;
    const int steps = (c + BK - 1) / BK, row_step = FILL_ROWS * c;
    const unsigned shared = (unsigned)__cvta_generic_to_shared(stages);
    const unsigned fill_to = shared + fill_row * ROW + (chunk ^ fill_row % 8) * 16;
    auto fill = [&](int slot) {
        const unsigned to = fill_to + slot * STAGE;
#pragma unroll
        for (int l = 0; l < BM / FILL_ROWS; ++l)
            copy_chunk(to + l * FILL_ROWS * ROW, a_from + l * row_step,
                       c_left > 0 && l * FILL_ROWS < a_left ? 16 : 0);
#pragma unroll
        for (int l = 0; l < BN / FILL_ROWS; ++l)
            copy_chunk(to + (BM + l * FILL_ROWS) * ROW, b_from + l * row_step,
                       c_left > 0 && l * FILL_ROWS < b_left ? 16 : 0);
        a_from += BK, b_from += BK, c_left -= BK;
    };

    // Lane l gives ldmatrix the address of one chunk of a slice: in row l % 16 of 16 patches, in row
    // l % 8 + l / 16 * 8 of 16 filters.
    const int m_warp = warp / WARPS_N * WM, n_warp = warp % WARPS_N * WN;
    const unsigned a_lane = (m_warp + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16;
    const unsigned b_lane = (BM + n_warp + lane % 8 + lane / 16 * 8) * ROW + (lane / 8 % 2 ^ lane % 8) * 16;

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) fill(stage);
        commit();
    }
    wait<STAGES - 2>();
    __syncthreads();
    float sum[TM][TN][4] = {};
    int slot = 0, free_slot = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        if (step + STAGES - 1 < steps) fill(free_slot);
        commit();
        free_slot = free_slot == STAGES - 1 ? 0 : free_slot + 1;
        // The tensor core cuts digits off its running sum; it keeps one for a step of 32 only, floats keep the rest.
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
        for (int mi = 0; mi < TM; ++mi)
#pragma unroll
            for (int ni = 0; ni < TN; ++ni)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[mi][ni][e] += part[mi][ni][e];
        wait<STAGES - 2>();
        __syncthreads();
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }

    // Through shared memory, 16 rows of a warp at a time, so that 16-byte stores cover whole lines of the products.
    constexpr int PITCH = WN + 8, PER_ROW = WN / VEC_K;
    wait<0>();
    __syncthreads();
    float* staged = reinterpret_cast<float*>(stages) + warp * 16 * PITCH;
    float* own = products + (size_t)blockIdx.y * tiles * k;
#pragma unroll
    for (int mi = 0; mi < TM; ++mi) {
#pragma unroll
        for (int ni = 0; ni < TN; ++ni)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(staged + (lane / 4 + half * 8) * PITCH + ni * 8 + lane % 4 * 2) =
                    make_float2(sum[mi][ni][half * 2], sum[mi][ni][half * 2 + 1]);
        __syncwarp();
#pragma unroll 4
        for (int e = lane; e < 16 * PER_ROW; e += 32) {
            const int m = m0 + m_warp + mi * 16 + e / PER_ROW, ko = n0 + n_warp + e % PER_ROW * VEC_K;
            if (m >= tiles || ko >= k) continue;
            const float* from = staged + e / PER_ROW * PITCH + e % PER_ROW * VEC_K;
#if VEC_K == 4
            *reinterpret_cast<float4*>(own + ((size_t)m * k + ko)) = *reinterpret_cast<const float4*>(from);
#else
            own[(size_t)m * k + ko] = *from;
#endif
        }
        __syncwarp();
    }
}

#if VEC_K == 4
typedef float4 Out;
__device__ __forceinline__ Out clip(Out x) {
    return make_float4(fmaxf(x.x, 0.0f), fmaxf(x.y, 0.0f), fmaxf(x.z, 0.0f), fmaxf(x.w, 0.0f));
}
#else
typedef float Out;
__device__ __forceinline__ Out clip(Out x) { return fmaxf(x, 0.0f); }
#endif

// products [4][4][n][rows][columns][k], bias [k] -> out [n][p][q][k]: At m A with At = [1 1 1 0; 0 1 -1 -1]; a thread
// has four output channels, or one, of 2 x 2 pixels.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_winograd_outputs(const float* __restrict__ products,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int k, int p, int q) {
    const int per_row = k / VEC_K, index = (int)(blockIdx.x * 128 + threadIdx.x);
    const int rows = (p + 1) / 2, columns = (q + 1) / 2, tiles = n * rows * columns;
    if (index >= tiles * per_row) return;
    const int tile = index / per_row, ko = index % per_row;
    const int x = tile % columns * 2, y = tile / columns % rows * 2;
    const Out* from = reinterpret_cast<const Out*>(products) + index;
    const size_t next = (size_t)tiles * per_row;
    Out upper[4], lower[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const Out m1 = from[(4 + j) * next], m2 = from[(8 + j) * next];
        upper[j] = from[j * next] + m1 + m2;
        lower[j] = m1 - m2 - from[(12 + j) * next];
    }
    Out results[2][2] = {{upper[0] + upper[1] + upper[2], upper[1] - upper[2] - upper[3]},
                         {lower[0] + lower[1] + lower[2], lower[1] - lower[2] - lower[3]}};
    Out* to = reinterpret_cast<Out*>(out) + (((size_t)(tile / columns / rows) * p + y) * q + x) * per_row + ko;
#if BIAS
    const Out shift = reinterpret_cast<const Out*>(bias)[ko];
#endif
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            Out result = results[i][j];
#if BIAS
            result = result + shift;
#endif
#if RELU
            result = clip(result);
#endif
            if (y + i < p && x + j < q) to[((size_t)i * q + j) * per_row] = result;
        }
}
