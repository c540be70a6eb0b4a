// /// opbench
// title     = "nhwc_mma_tf32_corrected with its depth split over SPLIT blocks, partial sums added in fixed order"
// builds_on = "nhwc_mma_tf32_corrected"
// tune      = { BM = [64, 128], BN = [64, 128], STAGES = [6, 3], SPLIT = [8, 4, 16] }
// where     = ["BM == BN", "STAGES == (6 if BM == 64 else 3)", "(BM, SPLIT) in ((64, 8), (64, 4), (64, 16), (128, 4))"]
// define.ALIGNED = "1 if c % 4 == 0 else 0"
// define.BIAS    = "0 if epilogue == 'none' else 1"
// define.RELU    = "1 if epilogue == 'bias_relu' else 0"
// supports  = { layout = ["nhwc"], epilogue = ["none", "bias", "bias_relu"], dtype = ["f32"] }
// requires  = [
//     "r <= 16 and s <= 15", "c * r * s >= 128", "n * h * w * c < 2 ** 31", "n * p * q + BM < 2 ** 31",
//     "(k + BN) * (c * r * s + 64) < 2 ** 31", "SPLIT * n * p * q * k <= 2 ** 28",
// ]
// precision = "f32"
// product   = "tf32_corrected"
// compute_capability = "8.0"
// workspace = { partial = "SPLIT * n * p * q * k" }
//
// [[launch]]
// kernel = "conv2d_nhwc_mma_tf32_corrected_split"
// grid   = ["cdiv(n * p * q, BM) * cdiv(k, BN)", "SPLIT"]
// block  = ["32 * (BM // (32 if BM == 64 else 64)) * (BN // 32)"]
// shared = "STAGES * (BM + BN) * 128"
// args   = ["image", "weight", "partial", "n", "c", "h", "w", "k", "r", "s", "stride", "padding"]
//
// [[launch]]
// kernel = "conv2d_nhwc_add_partials"
// grid   = ["cdiv(n * p * q * k, 128 * (4 if k % 4 == 0 else 1))"]
// block  = [128]
// ///
//
// One image of a deep layer makes few tiles (12 x 12 pixels x 384 channels: 18 of 64 x 64, for 132 multiprocessors) but
// a long sum. As nhwc_mma_tf32_corrected, with SPLIT blocks per tile, each adding up a stretch of the depth into a
// workspace; a second kernel adds the SPLIT partial sums in index order, so that the result does not depend on timing,
// and applies bias and ReLU. Limited by latency: a block's few steps, and the second launch. Idea: split-K of CUTLASS.

#include <cuda_bf16.h>

typedef float T;
constexpr int VEC = 16 / sizeof(T);       // elements of a chunk, the unit of every copy
constexpr int CHUNKS = 8, ROW = 128;      // chunks and bytes of a tile's row
constexpr int BK = CHUNKS * VEC;          // depth of a step
constexpr int WM = BM == 64 ? 32 : 64;    // a warp's part of the block's tile
constexpr int WN = 32;
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int TM = WM / 16, TN = WN / 8;  // its mma tiles
constexpr int FILL_ROWS = THREADS / CHUNKS;
constexpr int A_LOADS = BM / FILL_ROWS, B_LOADS = BN / FILL_ROWS;
constexpr int STAGE = (BM + BN) * ROW;    // bytes: BM rows of image, then BN rows of weights
constexpr int PROMOTED = 4;               // steps of a running sum
constexpr int SLICES = ROW / 32;          // an mma takes 32 bytes of depth in either format
typedef float Out;

// 16 bytes to shared memory without a register in between; zeros where `bytes` is 0, and then nothing is read.
__device__ __forceinline__ void copy_chunk(unsigned to, const T* from, int bytes) {
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
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same on 16 x 8 x 16 bf16
__device__ __forceinline__ void correct_tile(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const unsigned*>(&pair);
}
// tf32 cuts off the lower 13 bits of x and y. `whole`: both numbers in bf16; `rest`: what was cut off, in bf16.
__device__ __forceinline__ void split(unsigned x, unsigned y, unsigned& whole, unsigned& rest) {
    const float fx = __uint_as_float(x), fy = __uint_as_float(y);
    whole = pack(fx, fy);
    rest = pack(fx - __uint_as_float(x & 0xffffe000u), fy - __uint_as_float(y & 0xffffe000u));
}
// A depth of 16: fragments of two tf32 slices, a[slice], b[slice]. A bf16 fragment holds pairs of neighbours in depth
// where     = ["BM == BN", "STAGES == (6 if BM == 64 else 3)", "(BM, SPLIT) in ((64, 8), (64, 4), (64, 16), (128, 4))"]
// that the pairs are made of the elements that the thread has: no exchange.
__device__ __forceinline__ void multiply(const unsigned (&a)[2][TM][4], const unsigned (&b)[2][TN / 2][4],
                                         float (&sum)[TM][TN][4]) {
    unsigned b_whole[TN][2], b_rest[TN][2];
#pragma unroll
    for (int ni = 0; ni < TN; ++ni)
#pragma unroll
        for (int slice = 0; slice < 2; ++slice)
            split(b[slice][ni / 2][ni % 2 * 2], b[slice][ni / 2][ni % 2 * 2 + 1], b_whole[ni][slice],
                  b_rest[ni][slice]);
    // Two rows of tiles at a time: by the time that a sum's turn comes again, its last addition is through.
#pragma unroll
    for (int m = 0; m < TM; m += 2) {
        unsigned whole[2][4], rest[2][4];
#pragma unroll
        for (int mi = 0; mi < 2; ++mi)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                split(a[e / 2][m + mi][e % 2], a[e / 2][m + mi][e % 2 + 2], whole[mi][e], rest[mi][e]);
#pragma unroll
        for (int t = 0; t < 2 * TN; ++t)
            correct_tile(sum[m + t / TN][t % TN], rest[t / TN], b_whole[t % TN][0], b_whole[t % TN][1]);
#pragma unroll
        for (int t = 0; t < 2 * TN; ++t)
            correct_tile(sum[m + t / TN][t % TN], whole[t / TN], b_rest[t % TN][0], b_rest[t % TN][1]);
#pragma unroll
        for (int slice = 0; slice < 2; ++slice)
#pragma unroll
            for (int t = 0; t < 2 * TN; ++t)
                multiply_tile(sum[m + t / TN][t % TN], a[slice][m + t / TN], b[slice][t % TN / 2][t % 2 * 2],
                              b[slice][t % TN / 2][t % 2 * 2 + 1]);
    }
}

struct __align__(8) Row {
    int origin;        // of the pixel's window in the image, in elements; may lie outside
    unsigned outside;  // bit i: filter row i is outside the image; bit 16 + j: filter column j; bit 31: always
};

__device__ __forceinline__ Row find_row(int m, int pixels, int plane, int c, int h, int w, int q, int r, int s,
                                        int stride, int padding) {
    if (m >= pixels) return {0, ~0u};
    const int pixel = m % plane;
    const int y = pixel / q * stride - padding, x = pixel % q * stride - padding;
    const int first_i = min(max(-y, 0), r), last_i = max(min(h - y, r), first_i);
    const int first_j = min(max(-x, 0), s), last_j = max(min(w - x, s), first_j);
    const unsigned inside = ((1u << last_i) - (1u << first_i)) | ((1u << last_j) - (1u << first_j)) << 16;
    return {(m / plane * h * w + y * w + x) * c, ~inside};
}

// image [n][h][w][c], weight [k][r][s][c], partial [SPLIT][n][p][q][k]
extern "C" __global__ void __launch_bounds__(THREADS, THREADS == 256 ? 1 : 2)
    conv2d_nhwc_mma_tf32_corrected_split(const T* __restrict__ image, const T* __restrict__ weight,
                         float* __restrict__ partial,
                         int n, int c, int h, int w, int k, int r, int s, int stride, int padding) {
    extern __shared__ __align__(16) unsigned char tiles[];
    __shared__ Row rows[BM];
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const int pixels = n * p * q, depth = r * s * c;
    const int tiles_n = (k + BN - 1) / BN;  // neighbouring blocks share the rows of the image, the larger operand
    const int m0 = (int)(blockIdx.x / tiles_n) * BM, n0 = (int)(blockIdx.x % tiles_n) * BN;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    for (int row = thread; row < BM; row += THREADS)
        rows[row] = find_row(m0 + row, pixels, p * q, c, h, w, q, r, s, stride, padding);
    __syncthreads();

    // Each thread fills one chunk of every FILL_ROWS-th row; i, j, ci: filter row, column, channel of its first one.
    const int chunk = thread % CHUNKS, fill_row = thread / CHUNKS;
    const int rows_left = k - n0 - fill_row;
    // The SPLIT blocks of a tile share its steps as evenly as whole steps can be shared; some may get none.
    const int all_steps = (depth + BK - 1) / BK, z = blockIdx.y;
    const int first_step = all_steps * z / SPLIT, steps = all_steps * (z + 1) / SPLIT - first_step;
    const int start = first_step * BK + chunk * VEC;
    int i = start / (c * s), j = start / c % s, ci = start % c;
    int b_offset = (n0 + fill_row) * depth + start;
    const int next_ci = BK % c, next_j = BK / c % s, next_i = BK / c / s;  // one step further, before carries
    // The chunks of a row are permuted by its number, so that neither copies nor ldmatrix meet bank conflicts.
    const int fill_offset = fill_row * ROW + (chunk ^ fill_row % 8) * 16;
    const unsigned shared = (unsigned)__cvta_generic_to_shared(tiles);

    auto fill = [&](int slot) {
#if ALIGNED
        const unsigned to = shared + slot * STAGE + fill_offset;
        const int shift = (i * w + j) * c + ci;
        const unsigned needed = i < r ? 1u << i | 0x10000u << j : 1u << 31;
        Row found[A_LOADS];  // first all, then the copies: each load between copies would wait for itself
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l) found[l] = rows[fill_row + l * FILL_ROWS];
#pragma unroll
        for (int l = 0; l < A_LOADS; ++l)
            copy_chunk(to + l * FILL_ROWS * ROW, image + (found[l].origin + shift), found[l].outside & needed ? 0 : 16);
#pragma unroll
        for (int l = 0; l < B_LOADS; ++l)
            copy_chunk(to + (BM + l * FILL_ROWS) * ROW, weight + (b_offset + l * FILL_ROWS * depth),
                       i < r && l * FILL_ROWS < rows_left ? 16 : 0);
#else
        // Channels that do not fill chunks: a chunk spans filter positions, so its elements come one by one.
        unsigned char* to = tiles + slot * STAGE + fill_offset;
        constexpr int PER_WORD = 4 / sizeof(T);
        int ei = i, ej = j, ec = ci;
#pragma unroll 1
        for (int word = 0; word < 4; ++word) {
            union Word { T elements[PER_WORD]; unsigned bits; } found[A_LOADS > B_LOADS ? A_LOADS : B_LOADS];
            int shift[PER_WORD];
            unsigned needed[PER_WORD];
#pragma unroll
            for (int e = 0; e < PER_WORD; ++e) {
                shift[e] = (ei * w + ej) * c + ec;
                needed[e] = ei < r ? 1u << ei | 0x10000u << ej : 1u << 31;
                if (++ec == c) ec = 0, ++ej;
                if (ej == s) ej = 0, ++ei;
            }
#pragma unroll
            for (int l = 0; l < A_LOADS; ++l) {
                const Row row = rows[fill_row + l * FILL_ROWS];
#pragma unroll
                for (int e = 0; e < PER_WORD; ++e)
                    found[l].elements[e] = row.outside & needed[e] ? T(0.0f) : image[row.origin + shift[e]];
            }
#pragma unroll
            for (int l = 0; l < A_LOADS; ++l)
                *reinterpret_cast<unsigned*>(to + word * 4 + l * FILL_ROWS * ROW) = found[l].bits;
#pragma unroll
            for (int l = 0; l < B_LOADS; ++l)
#pragma unroll
                for (int e = 0; e < PER_WORD; ++e)
                    found[l].elements[e] = needed[e] >> 31 == 0 && l * FILL_ROWS < rows_left
                                               ? weight[b_offset + word * PER_WORD + e + l * FILL_ROWS * depth]
                                               : T(0.0f);
#pragma unroll
            for (int l = 0; l < B_LOADS; ++l)
                *reinterpret_cast<unsigned*>(to + word * 4 + (BM + l * FILL_ROWS) * ROW) = found[l].bits;
        }
#endif
        b_offset += BK;
        ci += next_ci, j += next_j, i += next_i;
        if (ci >= c) ci -= c, ++j;
        if (j >= s) j -= s, ++i;
    };

    // Lane l gives ldmatrix the address of one chunk of a slice: in row l % 16 of an image tile, in row
    // l % 8 + l / 16 * 8 of two weight tiles.
    const int m_warp = warp / WARPS_N * WM, n_warp = warp % WARPS_N * WN;
    const unsigned a_lane = (m_warp + lane % 16) * ROW + (lane / 16 ^ lane % 8) * 16;
    const unsigned b_lane = (BM + n_warp + lane % 8 + lane / 16 * 8) * ROW + (lane / 8 % 2 ^ lane % 8) * 16;
    auto fetch = [&](int slot, int slice, unsigned (&a)[TM][4], unsigned (&b)[TN / 2][4]) {
        const unsigned from = shared + slot * STAGE;
#pragma unroll
        for (int mi = 0; mi < TM; ++mi) load_matrices(a[mi], from + (a_lane ^ slice * 32) + mi * 16 * ROW);
#pragma unroll
        for (int ni = 0; ni < TN / 2; ++ni) load_matrices(b[ni], from + (b_lane ^ slice * 32) + ni * 16 * ROW);
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) fill(stage);
        commit();
    }
    wait<STAGES - 2>();
    __syncthreads();
    float sum[TM][TN][4] = {}, part[TM][TN][4] = {};  // part: the tensor core's own
    int slot = 0, free_slot = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        if (step + STAGES - 1 < steps) fill(free_slot);
        commit();
        free_slot = free_slot == STAGES - 1 ? 0 : free_slot + 1;
#pragma unroll
        for (int slice = 0; slice < SLICES; slice += 2) {
            unsigned a[2][TM][4], b[2][TN / 2][4];
            fetch(slot, slice, a[0], b[0]);
            fetch(slot, slice + 1, a[1], b[1]);
            multiply(a, b, part);
        }
        if (step % PROMOTED == PROMOTED - 1 || step == steps - 1) {
#pragma unroll
            for (int e = 0; e < TM * TN * 4; ++e) {
                sum[e / 4 / TN][e / 4 % TN][e % 4] += part[e / 4 / TN][e / 4 % TN][e % 4];
                part[e / 4 / TN][e / 4 % TN][e % 4] = 0.0f;
            }
        }
        wait<STAGES - 2>();
        __syncthreads();
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }


    // Through shared memory, 16 pixels of a warp at a time, so that 16-byte stores cover whole lines of the output.
    constexpr int OUT_VEC = 16 / sizeof(Out), PITCH = WN + 8, PER_ROW = WN / OUT_VEC;
    wait<0>();
    __syncthreads();
    Out* staged = reinterpret_cast<Out*>(tiles) + warp * 16 * PITCH;
    const int column = lane % 4 * 2;
#pragma unroll
    for (int mi = 0; mi < TM; ++mi) {
#pragma unroll
        for (int ni = 0; ni < TN; ++ni) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float x = sum[mi][ni][half * 2], y = sum[mi][ni][half * 2 + 1];
                Out* to = staged + (lane / 4 + half * 8) * PITCH + ni * 8 + column;
                *reinterpret_cast<float2*>(to) = make_float2(x, y);
            }
        }
        __syncwarp();
#pragma unroll
        for (int e = lane; e < 16 * PER_ROW; e += 32) {
            const int m = m0 + m_warp + mi * 16 + e / PER_ROW, ko = n0 + n_warp + e % PER_ROW * OUT_VEC;
            if (m >= pixels || ko >= k) continue;
            const Out* from = staged + e / PER_ROW * PITCH + e % PER_ROW * OUT_VEC;
            Out* to = partial + (size_t)z * pixels * k + ((size_t)m * k + ko);
            if (k % OUT_VEC == 0) {
                *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
            } else {
                for (int v = 0; v < OUT_VEC && ko + v < k; ++v) to[v] = from[v];
            }
        }
        __syncwarp();
    }
}

// partial [SPLIT][n][p][q][k]: the partial sums in index order, whichever block finished first.
extern "C" __global__ void __launch_bounds__(128)
    conv2d_nhwc_add_partials(const T*, const T*,
#if BIAS
                             const T* __restrict__ bias,
#endif
                             T* __restrict__ out, const float* __restrict__ partial, int n, int c, int h, int w, int k,
                             int r, int s, int stride, int padding) {
    const int p = (h + 2 * padding - r) / stride + 1, q = (w + 2 * padding - s) / stride + 1;
    const size_t total = (size_t)n * p * q * k, index = (size_t)blockIdx.x * 128 + threadIdx.x;
    auto finish = [&](float sum, size_t element) {
#if BIAS
        sum += (float)bias[element % k];
#endif
#if RELU
        sum = fmaxf(sum, 0.0f);
#endif
        out[element] = T(sum);
    };
    if (k % 4 == 0) {
        const size_t first = index * 4;
        if (first >= total) return;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int z = 0; z < SPLIT; ++z) {
            const float4 v = *reinterpret_cast<const float4*>(partial + z * total + first);
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        finish(sum.x, first), finish(sum.y, first + 1), finish(sum.z, first + 2), finish(sum.w, first + 3);
    } else if (index < total) {
        float sum = 0.0f;
#pragma unroll
        for (int z = 0; z < SPLIT; ++z) sum += partial[z * total + index];
        finish(sum, index);
    }
}
