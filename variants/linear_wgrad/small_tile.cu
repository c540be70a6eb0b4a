// /// opbench
// title     = "one small tile per block: the whole batch is loaded at once and split over the warps"
// builds_on = "register_tile"
// mechanism = ["coalesced", "shared_memory_tile", "register_tile", "sliced_k"]
// supports  = { bias = ["no", "yes"], dtype = ["f32", "bf16"] }
// tune      = { BN = [16, 32], SLICES = [8, 4], DEPTH = [128, 512] }
// requires  = ["DEPTH == 128 or m > 128", "n <= 16 * 65535"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// BIAS    = "1 if bias == 'yes' else 0"
// N4      = "n % 4 == 0"
// K4      = "k % 4 == 0"
// THREADS = "32 * SLICES"
// STEP    = "min(DEPTH, m)"
//
// [[launch]]
// kernel = "linear_wgrad_small_tile"
// grid   = ["cdiv(k + BIAS, BN)", "cdiv(n, 16)"]
// block  = ["THREADS"]
// shared = "4 * max(STEP * (16 + BN), SLICES * 16 * BN)"
// ///
//
// If a layer has some ten thousand weights, a variant with tiles of 64 x 64 has two blocks, or sixteen if it splits the
// batch, and then a second kernel must add the parts. Here a tile has 16 rows, so there are a hundred tiles, and one
// step loads up to DEPTH items of the batch. If that is the whole batch, one wait for memory and one barrier are
// enough. The warps of a block divide the items. Each warp has sums for the whole tile in registers, 8 or 16 per
// thread. The sums of the warps are added in order from shared memory, so the bits are the same every time. A column of
// ones yields the gradient of the bias. Limit: the launch and one wait for memory, some 3 µs together, for as long as
// the operands are read from L2 only a few times; expected, not measured.

#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int BM = 16, LANES_N = BN / 4, LANES_M = 32 / LANES_N, ROWS = BM / LANES_M;  // a thread: ROWS x 4

// x [m][k], dout [m][n], dweight [n][k], dbias [n]; in shared memory a_tile [STEP][BM] and b_tile [STEP][BN], and after
// the loop the sums [SLICES][BM][BN]
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_wgrad_small_tile(const T* __restrict__ x, const T* __restrict__ dout, float* __restrict__ dweight,
#if BIAS
                            float* __restrict__ dbias,
#endif
                            int m, int n, int k) {
    extern __shared__ __align__(16) float shared[];
    float* const a_tile = shared;
    float* const b_tile = shared + STEP * BM;
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane_n = threadIdx.x % LANES_N, lane_m = threadIdx.x % 32 / LANES_N;
    float sum[ROWS][4] = {};
    for (int first = 0; first < m; first += STEP) {
        if (first > 0) __syncthreads();
        load_rows_to_shared<THREADS, STEP, BM, BM, N4, true>(a_tile, dout + (size_t)first * n + row0, n, m - first,
                                                             n - row0, -1);
        load_rows_to_shared<THREADS, STEP, BN, BN, K4, true>(b_tile, x + (size_t)first * k + column0, k, m - first,
                                                             k - column0, BIAS ? k - column0 : -1);
        __syncthreads();
#pragma unroll 4
        for (int d = warp; d < STEP; d += SLICES) {
            float a[ROWS];
            if (ROWS == 4) {
                const float4 four = *reinterpret_cast<const float4*>(a_tile + d * BM + lane_m * ROWS);
                a[0] = four.x, a[1] = four.y, a[2 % ROWS] = four.z, a[3 % ROWS] = four.w;
            } else {
                const float2 two = *reinterpret_cast<const float2*>(a_tile + d * BM + lane_m * ROWS);
                a[0] = two.x, a[1] = two.y;
            }
            const float4 b = *reinterpret_cast<const float4*>(b_tile + d * BN + lane_n * 4);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                sum[i][0] += a[i] * b.x, sum[i][1] += a[i] * b.y;
                sum[i][2] += a[i] * b.z, sum[i][3] += a[i] * b.w;
            }
        }
    }
    __syncthreads();  // the operands are not read any more
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        *reinterpret_cast<float4*>(shared + warp * BM * BN + (lane_m * ROWS + i) * BN + lane_n * 4) =
            make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < BM * BN; e += THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int z = 0; z < SLICES; ++z) total += shared[z * BM * BN + e];
        const int row = row0 + e / BN, column = column0 + e % BN;
        if (row >= n) continue;
        if (column < k) dweight[(size_t)row * k + column] = total;
#if BIAS
        if (column == k) dbias[row] = total;
#endif
    }
}
