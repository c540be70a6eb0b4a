// /// opbench
// title     = "Winograd's patches transformed between shared memory and registers: no workspace but the filters'"
// builds_on = "nhwc_winograd_3xtf32_fused"
// tune      = { BN = [64, 128], STAGES = [2, 4] }
// where     = ["STAGES == (2 if BN == 64 else 4)"]  # two blocks per multiprocessor, or one
// define.BIAS = "0 if epilogue == 'none' else 1"
// define.RELU = "1 if epilogue == 'bias_relu' else 0"
// define.VEC_K = "4 if k % 4 == 0 else 1"
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

constexpr int CHUNKS = 8, ROW = 128;      // chunks of 16 bytes, and bytes, of a row of filters
constexpr int BK = ROW / 4;               // channels of a step
constexpr int TILES = 8;                  // a block has 8 x 8 tiles of 2 x 2 outputs
constexpr int SIDE = 2 * TILES + 2;       // pixels under them
constexpr int PITCH = BK + 4;             // floats from pixel to pixel: 4 tiles' 8-byte loads meet no bank conflict
constexpr int IMAGE = SIDE * SIDE * PITCH, COPIES = SIDE * SIDE * CHUNKS;
constexpr int WM = 32, WN = 32;           // a warp's tiles and output channels
constexpr int WARPS_N = BN / WN, THREADS = 64 * WARPS_N;
constexpr int COPIES_PER_STEP = 256;      // of the next pixels: done before the last STAGES steps of 16
static_assert(COPIES <= COPIES_PER_STEP * (16 - STAGES) && COPIES_PER_STEP % THREADS == 0, "pixels arrive in time");
constexpr int TM = WM / 16, TN = WN / 8;  // its mma tiles
constexpr int FILL_ROWS = THREADS / CHUNKS;
constexpr int STAGE = BN * ROW;           // bytes
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

// weight [k][3][3][c] -> filters [4][4][k][c], G g Gt with G = [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1]
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
    // Of 8 channels the even ones come first, as they meet those of two neighbouring ones that a thread loads at once.
    float2* to = reinterpret_cast<float2*>(filters) + index / 2 * 4 + index % 2;
    const size_t next = (size_t)k * quads * 2;
    auto store = [&](int product, float4 value) {
        to[product * next] = make_float2(value.x, value.z);
        to[product * next + 2] = make_float2(value.y, value.w);
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 outer = 0.5f * (columns[i][0] + columns[i][2]), inner = 0.5f * columns[i][1];
        store(i * 4, columns[i][0]);
        store(i * 4 + 1, outer + inner);
        store(i * 4 + 2, outer - inner);
        store(i * 4 + 3, columns[i][2]);
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

// One of the 4 x 4 products as rows or columns of Bt = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1] and
// At = [1 1 1 0; 0 1 -1 -1] give it: pixels first + sign * second, and the factors of its two outputs.
struct Line {
    int first, second;
    float sign, factors[2];
};
__device__ __forceinline__ Line line(int i) {
    return {i == 3 ? 1 : i, i < 2 ? 2 : i == 2 ? 1 : 3, i == 1 ? 1.0f : -1.0f,
            {i < 3 ? 1.0f : 0.0f, i == 0 ? 0.0f : i == 1 ? 1.0f : -1.0f}};
}

// image [n][h][w][c], filters [4][4][k][c], bias [k] -> out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
    conv2d_winograd_outputs(const float* __restrict__ image, const float* __restrict__ filters,
#if BIAS
                            const float* __restrict__ bias,
#endif
                            float* __restrict__ out, int n, int c, int h, int w, int k, int p, int q, int padding) {
    extern __shared__ __align__(16) float pixels[];  // [2][SIDE][SIDE][PITCH], then [STAGES][BN] rows of filters
    const int tiles_k = (k + BN - 1) / BN;           // neighbouring blocks share their pixels
    const int blocks_x = (q + 15) / 16, blocks_y = (p + 15) / 16, place = (int)(blockIdx.x / tiles_k);
    const int n0 = (int)(blockIdx.x % tiles_k) * BN, picture = place / blocks_x / blocks_y;
    const int out_x = place % blocks_x * 16, out_y = place / blocks_x % blocks_y * 16;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int chunks = (c + BK - 1) / BK;

    const unsigned shared = (unsigned)__cvta_generic_to_shared(pixels);
    auto copy_pixel = [&](int index, int chunk) {  // four channels of one
        const int pixel = index / CHUNKS, channel = chunk * BK + index % CHUNKS * 4;
        const int y = out_y - padding + pixel / SIDE, x = out_x - padding + pixel % SIDE;
        const bool inside = y >= 0 && y < h && x >= 0 && x < w && channel < c;
        copy_chunk(shared + (chunk % 2 * IMAGE + pixel * PITCH + index % CHUNKS * 4) * 4,
                   image + ((((long long)picture * h + y) * w + x) * c + channel), inside ? 16 : 0);
    };

    // Each thread fills one chunk of every FILL_ROWS-th row. The chunks of a row are permuted by its number, so that
    // neither copies nor ldmatrix meet bank conflicts.
    const int fill_chunk = thread % CHUNKS, fill_row = thread / CHUNKS;
    const unsigned stages = shared + 2 * IMAGE * 4;
    const unsigned fill_to = stages + fill_row * ROW + (fill_chunk ^ fill_row % 8) * 16;
    auto fill = [&](int slot, int step) {
        const int product = step % 16, channel = step / 16 * BK + fill_chunk * 4;
        const float* from = filters + ((size_t)product * k + n0 + fill_row) * c + channel;
#pragma unroll
        for (int l = 0; l < BN / FILL_ROWS; ++l)
            copy_chunk(fill_to + slot * STAGE + l * FILL_ROWS * ROW, from + l * FILL_ROWS * c,
                       channel < c && n0 + fill_row + l * FILL_ROWS < k ? 16 : 0);
    };

    // Rows of a matrix instruction's first operand are tiles: lane / 4 is their column, 8 rows lower their next line.
    const int m_warp = warp / WARPS_N * WM, n_warp = warp % WARPS_N * WN;
    const int a_lane = (m_warp / TILES * 2 * SIDE + lane / 4 * 2) * PITCH + lane % 4 * 2;
    // Lane l gives ldmatrix the address of one chunk of a slice: in row l % 8 + l / 16 * 8 of 16 filters.
    const unsigned b_lane = (n_warp + lane % 8 + lane / 16 * 8) * ROW + (lane / 8 % 2 ^ lane % 8) * 16;

    for (int index = thread; index < COPIES; index += THREADS) copy_pixel(index, 0);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        fill(stage, stage);
        commit();
    }
    wait<STAGES - 2>();
    __syncthreads();
    float sum[4][TM][TN][4] = {};  // of the outputs 2 i + j
#pragma unroll 1
    for (int step = 0; step < 16 * chunks; ++step) {
        const int chunk = step / 16, product = step % 16;
        if (step + STAGES - 1 < 16 * chunks) fill((step + STAGES - 1) % STAGES, step + STAGES - 1);
        if (chunk + 1 < chunks)
#pragma unroll
            for (int l = 0; l < COPIES_PER_STEP; l += THREADS)
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
        float part[TM][TN][4] = {};
        const unsigned from = stages + step % STAGES * STAGE;
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) {
            unsigned a[TM][4], b[TN / 2][4];
#pragma unroll
            for (int ni = 0; ni < TN / 2; ++ni) load_matrices(b[ni], from + (b_lane ^ slice * 32) + ni * 16 * ROW);
#pragma unroll
            for (int half = 0; half < TM * 2; ++half) {
                const float2 found = combine(half * 2 * SIDE * PITCH + slice * 8);
                a[half / 2][half % 2] = __float_as_uint(found.x);
                a[half / 2][half % 2 + 2] = __float_as_uint(found.y);
            }
            multiply(a, b, part);
        }
#pragma unroll
        for (int output = 0; output < 4; ++output) {
            const float factor = row.factors[output / 2] * column.factors[output % 2];
#pragma unroll
            for (int e = 0; e < TM * TN * 4; ++e)
                sum[output][e / 4 / TN][e / 4 % TN][e % 4] += factor * part[e / 4 / TN][e / 4 % TN][e % 4];
        }
        wait<STAGES - 2>();
        __syncthreads();
    }

    // Through shared memory, 16 tiles of a warp at a time, so that 16-byte stores cover whole lines of the output.
    constexpr int STAGED = WN + 8, PER_ROW = WN / VEC_K;
    wait<0>();
    __syncthreads();
    float* staged = pixels + warp * 16 * STAGED;
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
            float* to = staged + (lane / 4 + half * 8) * STAGED + ni * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(to) = make_float2(first, second);
        }
        __syncwarp();
#pragma unroll 4
        for (int e = lane; e < 16 * PER_ROW; e += 32) {
            const int tile = m_warp + mi * 16 + e / PER_ROW;
            const int y = out_y + tile / TILES * 2 + output / 2, x = out_x + tile % TILES * 2 + output % 2;
            const int ko = n0 + n_warp + e % PER_ROW * VEC_K;
            if (y >= p || x >= q || ko >= k) continue;
            const float* from = staged + e / PER_ROW * STAGED + e % PER_ROW * VEC_K;
            float* to = out + ((((size_t)picture * p + y) * q + x) * k + ko);
#if VEC_K == 4
            *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
#else
            *to = *from;
#endif
        }
        __syncwarp();
    }
}
