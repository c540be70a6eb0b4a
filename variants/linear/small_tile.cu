// /// opbench
// title     = "one small tile per block: its whole depth is loaded at once and split over the warps"
// builds_on = "warp_tile"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "sliced_k"]
// supports  = { epilogue = ["bias", "bias_relu"], dtype = ["f32", "bf16"] }
// tune      = { BN = [16, 32], SLICES = [8, 4], DEPTH = [128, 512] }
// requires  = ["DEPTH == 128 or k > 128", "m <= 16 * 65535"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// RELU    = "epilogue == 'bias_relu'"
// K4      = "k % 4 == 0"
// THREADS = "32 * SLICES"
// STEP    = "min(DEPTH, cdiv(k, 4) * 4)"
// PITCH   = "cdiv(STEP - 4, 8) * 8 + 4"
//
// [[launch]]
// kernel = "linear_small_tile"
// grid   = ["cdiv(n, BN)", "cdiv(m, 16)"]
// block  = ["THREADS"]
// shared = "4 * max((16 + BN) * PITCH, SLICES * 16 * BN)"
// ///
//
// If a layer has some ten thousand outputs, a variant with tiles of 64 x 64 has few blocks; each goes through the depth
// in steps, and each step waits for memory. Here a tile has 16 rows, so there are a hundred tiles, and one step loads
// up to DEPTH elements of the depth. If that is the whole depth, one wait for memory and one barrier are enough. The
// warps of a block divide the depth, four elements in turn. Each warp has sums for the whole tile in registers, 8 or 16
// per thread. The sums of the warps are added in order from shared memory, so the bits are the same every time. Limit:
// the launch and one wait for memory, some 3 µs together, for as long as the operands are read from L2 only a few
// times; expected, not measured.

#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int BM = 16, LANES_N = BN / 4, LANES_M = 32 / LANES_N, ROWS = BM / LANES_M;  // a thread: ROWS x 4

// x [m][k], weight [n][k], bias [n], out [m][n]; in shared memory a_tile [BM][PITCH] and b_tile [BN][PITCH], and after
// the loop the sums [SLICES][BM][BN]
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_small_tile(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                      T* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(16) float shared[];
    float* const a_tile = shared;
    float* const b_tile = shared + BM * PITCH;
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane_n = threadIdx.x % LANES_N, lane_m = threadIdx.x % 32 / LANES_N;
    float sum[ROWS][4] = {};
    for (int first = 0; first < k; first += STEP) {
        if (first > 0) __syncthreads();
        load_rows_to_shared<THREADS, BM, STEP, PITCH, K4>(a_tile, x + (size_t)row0 * k + first, k, m - row0, k - first);
        load_rows_to_shared<THREADS, BN, STEP, PITCH, K4>(b_tile, weight + (size_t)column0 * k + first, k, n - column0,
                                                          k - first);
        __syncthreads();
#pragma unroll 2
        for (int d = warp * 4; d < STEP; d += SLICES * 4) {
            float4 a[ROWS], b[4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                a[i] = *reinterpret_cast<const float4*>(a_tile + (lane_m + i * LANES_M) * PITCH + d);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                b[j] = *reinterpret_cast<const float4*>(b_tile + (lane_n + j * LANES_N) * PITCH + d);
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sum[i][j] += a[i].x * b[j].x, sum[i][j] += a[i].y * b[j].y;
                    sum[i][j] += a[i].z * b[j].z, sum[i][j] += a[i].w * b[j].w;
                }
        }
    }
    __syncthreads();  // the operands are not read any more
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            shared[warp * BM * BN + (lane_m + i * LANES_M) * BN + lane_n + j * LANES_N] = sum[i][j];
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < BM * BN; e += THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int z = 0; z < SLICES; ++z) total += shared[z * BM * BN + e];
        const int row = row0 + e / BN, column = column0 + e % BN;
        if (row >= m || column >= n) continue;
        total += (float)bias[column];
#if RELU
        total = fmaxf(total, 0.0f);
#endif
        out[(size_t)row * n + column] = T(total);
    }
}
