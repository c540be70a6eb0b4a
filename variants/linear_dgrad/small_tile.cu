// /// opbench
// title     = "one small tile per block: its whole depth is loaded at once and split over the warps"
// builds_on = "register_tile"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "sliced_k"]
// supports  = { epilogue = ["none", "mask", "gelu_tanh"], dtype = ["f32", "bf16"] }
// tune      = { BN = [16, 32], SLICES = [8, 4], DEPTH = [128, 512] }
// requires  = ["DEPTH == 128 or n > 128", "m <= 16 * 65535"]
//
// [define]
// BF16    = "dtype == 'bf16'"
// MASK    = "epilogue == 'mask'"
// GELU    = "epilogue == 'gelu_tanh'"
// N4      = "n % 4 == 0"
// K4      = "k % 4 == 0"
// THREADS = "32 * SLICES"
// STEP    = "min(DEPTH, cdiv(n, 4) * 4)"
// PITCH   = "cdiv(STEP - 4, 8) * 8 + 4"
//
// [[launch]]
// kernel = "linear_dgrad_small_tile"
// grid   = ["cdiv(k, BN)", "cdiv(m, 16)"]
// block  = ["THREADS"]
// shared = "4 * max(16 * PITCH + STEP * BN, SLICES * 16 * BN)"
// ///
//
// If a layer has some ten thousand outputs, a variant with tiles of 64 x 64 has two blocks; each goes through the depth
// in steps, and each step waits for memory. Here a tile has 16 rows, so there are a hundred tiles, and one step loads
// up to DEPTH elements of the depth. If that is the whole depth, one wait for memory and one barrier are enough. The
// warps of a block divide the depth, four elements in turn. Each warp has sums for the whole tile in registers, 8 or 16
// per thread. The sums of the warps are added in order from shared memory, so the bits are the same every time. Limit:
// the launch and one wait for memory, some 3 µs together, for as long as the operands are read from L2 only a few
// times; expected, not measured.

#include <opbench/activations.cuh>
#include <opbench/float_lines.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int BM = 16, LANES_N = BN / 4, LANES_M = 32 / LANES_N, ROWS = BM / LANES_M;  // a thread: ROWS x 4

// dout [m][n], weight [n][k], out, a and dx [m][k]; in shared memory a_tile [BM][PITCH] and b_tile [STEP][BN], and
// after the loop the sums [SLICES][BM][BN]
extern "C" __global__ void __launch_bounds__(THREADS)
    linear_dgrad_small_tile(const T* __restrict__ dout, const T* __restrict__ weight,
#if MASK
                            const T* __restrict__ out,
#elif GELU
                            const T* __restrict__ a,
#endif
                            T* __restrict__ dx, int m, int n, int k) {
    extern __shared__ __align__(16) float shared[];
    float* const a_tile = shared;
    float* const b_tile = shared + BM * PITCH;
    const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN;
    const int warp = threadIdx.x / 32, lane_n = threadIdx.x % LANES_N, lane_m = threadIdx.x % 32 / LANES_N;
    float sum[ROWS][4] = {};
    for (int first = 0; first < n; first += STEP) {
        if (first > 0) __syncthreads();
        load_rows_to_shared<THREADS, BM, STEP, PITCH, N4>(a_tile, dout + (size_t)row0 * n + first, n, m - row0,
                                                          n - first);
        load_rows_to_shared<THREADS, STEP, BN, BN, K4>(b_tile, weight + (size_t)first * k + column0, k, n - first,
                                                       k - column0);
        __syncthreads();
#pragma unroll 2
        for (int d = warp * 4; d < STEP; d += SLICES * 4) {
            float4 a[ROWS], b[4];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                a[i] = *reinterpret_cast<const float4*>(a_tile + (lane_m + i * LANES_M) * PITCH + d);
#pragma unroll
            for (int e = 0; e < 4; ++e) b[e] = *reinterpret_cast<const float4*>(b_tile + (d + e) * BN + lane_n * 4);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const float u[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[i][0] += u[e] * b[e].x, sum[i][1] += u[e] * b[e].y;
                    sum[i][2] += u[e] * b[e].z, sum[i][3] += u[e] * b[e].w;
                }
            }
        }
    }
    __syncthreads();  // the operands are not read any more
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        *reinterpret_cast<float4*>(shared + warp * BM * BN + (lane_m + i * LANES_M) * BN + lane_n * 4) =
            make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < BM * BN; e += THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int z = 0; z < SLICES; ++z) total += shared[z * BM * BN + e];
        const int row = row0 + e / BN, column = column0 + e % BN;
        if (row >= m || column >= k) continue;
        const size_t at = (size_t)row * k + column;
#if MASK
        if (!((float)out[at] > 0.0f)) total = 0.0f;
#elif GELU
        total *= slope<Function::gelu_tanh>((float)a[at]);
#endif
        dx[at] = T(total);
    }
}
