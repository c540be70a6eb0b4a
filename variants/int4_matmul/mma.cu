// /// opbench
// title     = "bf16 mma.sync with weights unpacked in registers; each thread has 32 neighbouring values of k"
// builds_on = "shared_tile"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "double_buffer", "async_copy", "tensor_core",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = "COLUMNS", k = "SLICES * 128" }
// tune      = { BM = [128, 64, 16, 8] }
// requires  = ["k % 32 == 0", "cdiv(m, BM) * cdiv(n, COLUMNS) < 2 ** 31"]
// define.COLUMNS = "32 if BM <= 16 else 128"
// define.SLICES  = "4 if BM <= 16 else 1"
// define.STAGES  = "4 if BM == 128 else 6"
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "int4_matmul_mma"
// grid   = ["cdiv(n, COLUMNS) * cdiv(m, BM)"]
// block  = ["256 if BM == 128 else 128"]
// shared = "STAGES * SLICES * (BM * 256 + COLUMNS * 64)"
// ///
//
// Weights stay packed until they are in registers, so DRAM, L2 and shared memory transfer four bits per weight. Three
// instructions convert a pair of weights to two bf16 numbers, exactly: a byte permutation, one that inserts the four
// bits as mantissa bits of 128, and the subtraction of 136. Weights are the 16 rows of an mma instruction, so 8 rows of
// a are enough to fill it. The order of k within a product is arbitrary if it is the same for both operands: lane t of
// a group of four takes 32 neighbouring elements along k, 16 bytes of weights and four chunks of a, so each of them is
// one load, without ldmatrix. The sums of a group of 128 weights are scaled and added in float32. With few rows, a
// block computes 32 columns, and its four warps process the groups in turn, so that there are enough blocks to read the
// weights at the rate of DRAM. Limit: that rate; for many rows, the rate of mma.sync. Ideas: FasterTransformer's
// conversion by the exponent; Marlin (Frantar and others, 2024).

#include <opbench/mma.cuh>
#include <opbench/packed_weights.cuh>
#include <opbench/tile.cuh>
using namespace opbench;

constexpr int THREADS = BM == 128 ? 256 : 128;
constexpr int ROWS = BM < 64 ? BM : 64;  // rows of a that a warp multiplies, which are the columns of its instructions
constexpr int TILES = ROWS / 8;
constexpr int A_BYTES = BM * 256, GROUP_BYTES = A_BYTES + COLUMNS * 64, STAGE_BYTES = SLICES * GROUP_BYTES;
constexpr int PITCH = COLUMNS + 8;  // elements of a line of the result in shared memory
static_assert(BM * PITCH * (SLICES > 1 ? 16 : 2) <= STAGES * STAGE_BYTES, "the result fits the stages");

// Return the offset of chunk 0 to 15 of a row of a, in two tiles of 128-byte rows. The lanes of one load differ in the
// lowest bit of the row, in the tile, and in the chunk by 4; the swizzle gives them different banks.
__device__ __forceinline__ int place_of_a(int row, int chunk) {
    return chunk / 8 * (BM * 128) + row * 128 + (chunk % 8 ^ (row % 2 + chunk / 8 * 2)) * 16;
}

// a [m][k], weight [n][k / 2], scale [groups][n], out [m][n]
extern "C" __global__ void __launch_bounds__(THREADS)
    int4_matmul_mma(const __nv_bfloat16* __restrict__ a, const unsigned char* __restrict__ weight,
                    const __nv_bfloat16* __restrict__ scale, __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int tiles_m = (m + BM - 1) / BM, groups = (k + 127) / 128, steps = (groups + SLICES - 1) / SLICES;
    const int m0 = blockIdx.x % tiles_m * BM, n0 = blockIdx.x / tiles_m * COLUMNS;  // neighbouring blocks share weights
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = lane / 4, quarter = lane % 4;
    const int slice = SLICES > 1 ? warp : 0;  // the warp's group of a step
    const int warp_n = SLICES > 1 ? 0 : warp % 4 * 32, warp_m = SLICES > 1 ? 0 : warp / 4 * 64;

    const auto fill = [&](int step) {
        unsigned char* const stage = shared + step % STAGES * STAGE_BYTES;
        if (step < steps) {
#pragma unroll
            for (int i = threadIdx.x; i < SLICES * BM * 16; i += THREADS) {
                const int of = i / (BM * 16), row = i / 16 % BM, chunk = i % 16;
                const int at = (step * SLICES + of) * 128 + chunk * 8;
                const bool exists = m0 + row < m && at < k;
                copy_chunk(stage + of * GROUP_BYTES + place_of_a(row, chunk),
                           a + (exists ? (size_t)(m0 + row) * k + at : 0), exists ? 16 : 0);
            }
#pragma unroll
            for (int i = threadIdx.x; i < SLICES * COLUMNS * 4; i += THREADS) {
                // the groups of a row have neighbouring addresses
                const int row = i / (SLICES * 4), of = i / 4 % SLICES;
                const int at = (step * SLICES + of) * 128 + i % 4 * 32;
                const bool exists = n0 + row < n && at < k;
                copy_chunk(stage + of * GROUP_BYTES + A_BYTES + row * 64 + i % 4 * 16,
                           weight + (exists ? ((size_t)(n0 + row) * k + at) / 2 : 0), exists ? 16 : 0);
            }
        }
        commit();
    };
    for (int step = 0; step < STAGES - 1; ++step) fill(step);

    float total[2][TILES][4] = {};
    for (int step = 0; step < steps; ++step) {
        const int group = step * SLICES + slice;
        float scales[2][2];  // of rows `line` and `line` + 8 of both tiles of weights
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int of = n0 + warp_n + i * 8 + line;
            scales[i / 2][i % 2] = of < n && group < groups ? __bfloat162float(scale[(size_t)group * n + of]) : 0.0f;
        }
        wait<STAGES - 2>();
        // the stage has arrived for all threads, and all of them have read the stage that is filled next
        __syncthreads();
        fill(step + STAGES - 1);
        const unsigned stage =
            (unsigned)__cvta_generic_to_shared(shared) + step % STAGES * STAGE_BYTES + slice * GROUP_BYTES;
        unsigned packed[2][2][4];  // 32 weights of each row
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned (&four)[4] = packed[i / 2][i % 2];
            load_chunk(four[0], four[1], four[2], four[3],
                       stage + A_BYTES + (warp_n + i * 8 + line) * 64 + quarter * 16);
        }
        float sum[2][TILES][4] = {};
#pragma unroll
        for (int word = 0; word < 4; ++word) {  // 8 weights along k
            unsigned left[2][2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned x = packed[i / 2][i % 2][word];
                left[i / 2][0][i % 2] = two_weights(x, select_byte(0)),
                                   left[i / 2][0][i % 2 + 2] = two_weights(x, select_byte(1));
                left[i / 2][1][i % 2] = two_weights(x, select_byte(2)),
                                   left[i / 2][1][i % 2 + 2] = two_weights(x, select_byte(3));
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                unsigned right[4];
                load_chunk(right[0], right[1], right[2], right[3],
                           stage + place_of_a(warp_m + j * 8 + line, quarter * 4 + word));
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        mma_bf16(sum[i][j], left[i][half], right[half * 2], right[half * 2 + 1]);
            }
        }
#pragma unroll
        for (int e = 0; e < 2 * TILES * 4; ++e)
            total[e / 4 / TILES][e / 4 % TILES][e % 4] +=
                sum[e / 4 / TILES][e / 4 % TILES][e % 4] * scales[e / 4 / TILES][e % 4 / 2];
    }
    wait<0>();
    __syncthreads();

    // Transpose the result in shared memory: a line has the columns of a row of out. With SLICES > 1, each slice stores
    // its sums as floats.
#if SLICES > 1
    typedef float Result;
#else
    typedef __nv_bfloat16 Result;
#endif
    Result* const result = reinterpret_cast<Result*>(shared);
#pragma unroll
    for (int e = 0; e < 2 * TILES * 4; ++e) {
        const int column = warp_n + e / 4 / TILES * 16 + line + e % 4 / 2 * 8;
        const int row = warp_m + e / 4 % TILES * 8 + quarter * 2 + e % 2;
        result[(slice * BM + row) * PITCH + column] = Result(total[e / 4 / TILES][e / 4 % TILES][e % 4]);
    }
    __syncthreads();
#if SLICES > 1
    for (int i = threadIdx.x; i < BM * COLUMNS; i += THREADS) {
        const int row = i / COLUMNS, column = i % COLUMNS;
        if (m0 + row >= m || n0 + column >= n) continue;
        float sum = 0.0f;
#pragma unroll
        for (int of = 0; of < SLICES; ++of) sum += result[(of * BM + row) * PITCH + column];
        out[(size_t)(m0 + row) * n + n0 + column] = __float2bfloat16(sum);
    }
#else
    for (int i = threadIdx.x; i < BM * COLUMNS / 8; i += THREADS) {
        const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8, left = n - n0 - column;
        if (m0 + row >= m || left <= 0) continue;
        const __nv_bfloat16* from = result + row * PITCH + column;
        __nv_bfloat16* to = out + (size_t)(m0 + row) * n + n0 + column;
        if (n % 8 == 0) {
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        } else {
#pragma unroll 1
            for (int e = 0; e < min(8, left); ++e) to[e] = from[e];
        }
    }
#endif
}
