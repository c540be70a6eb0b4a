// /// opbench
// operator = "matmul"
// title    = "GEMM with twelve tunables, for opbench tune"
// where    = [
//   "BM % TY == 0 and BN % TX == 0",
//   "BK % UNROLL == 0",
//   "VA == 1 or STAGE_A == 1 and BM * BK >= VA * TX * TY",
//   "VB == 1 or STAGE_B == 1 and BN * BK >= VB * TX * TY",
// ]
// requires = ["k % VA == 0", "n % VB == 0"]
// launch   = [{ kernel = "gemm", grid = ["cdiv(n, BN)", "cdiv(m, BM)"], block = ["TX", "TY"] }]
//
// [tune]
// BM = { from = 16, to = 128, times = 2, first = 64 }
// BN = { from = 16, to = 128, times = 2, first = 64 }
// BK = [16, 8, 32]
// TX = [16, 8, 32]
// TY = [16, 8, 32]
// VA = [1, 2, 4]
// VB = [1, 2, 4]
// STRIDED_M = [1, 0]
// STRIDED_N = [1, 0]
// STAGE_A = [1, 0]
// STAGE_B = [1, 0]
// UNROLL = [1, 2, 4, 8]
// ///
//
// A block of TX x TY threads makes a tile of BM x BN outputs, over BK of k at a time; its tiles of a and b are staged in
// shared memory or not, loaded VA and VB floats at once, and a thread's outputs are neighbours or TX and TY apart. What
// may be chosen is after the public spaces of CLTune's and Kernel Tuner's GEMM (tile sizes, shapes of the work group,
// widths of loads, strides, staging), their product here is larger than anyone tries by hand: opbench tune FILE.cu.

#define ROWS (BM / TY)
#define COLS (BN / TX)

struct alignas(8) two { float x[2]; };
struct alignas(16) four { float x[4]; };

__device__ __forceinline__ void load(float (&to)[1], const float* from) { to[0] = *from; }
__device__ __forceinline__ void load(float (&to)[2], const float* from) {
    const two found = *reinterpret_cast<const two*>(from);
    to[0] = found.x[0], to[1] = found.x[1];
}
__device__ __forceinline__ void load(float (&to)[4], const float* from) {
    const four found = *reinterpret_cast<const four*>(from);
    to[0] = found.x[0], to[1] = found.x[1], to[2] = found.x[2], to[3] = found.x[3];
}

// a [m, k], b [k, n], out [m, n].
extern "C" __global__ void __launch_bounds__(TX* TY)
    gemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n, int k) {
#if STAGE_A
    __shared__ float a_tile[BK][BM + 1];  // transposed; one more, so that a column's writes meet in no bank
#endif
#if STAGE_B
    __shared__ __align__(16) float b_tile[BK][BN];
#endif
    const int tx = threadIdx.x, ty = threadIdx.y, me = ty * TX + tx;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    float sum[ROWS][COLS] = {};
    for (int base = 0; base < k; base += BK) {
#if STAGE_A
#pragma unroll
        for (int i = me; i < BM * BK / VA; i += TX * TY) {
            const int row = i / (BK / VA), at = i % (BK / VA) * VA;
            float piece[VA] = {};
            if (row0 + row < m && base + at < k) load(piece, a + (size_t)(row0 + row) * k + base + at);
#pragma unroll
            for (int j = 0; j < VA; ++j) a_tile[at + j][row] = piece[j];
        }
#endif
#if STAGE_B
#pragma unroll
        for (int i = me; i < BN * BK / VB; i += TX * TY) {
            const int at = i / (BN / VB), col = i % (BN / VB) * VB;
            float piece[VB] = {};
            if (base + at < k && col0 + col < n) load(piece, b + (size_t)(base + at) * n + col0 + col);
#pragma unroll
            for (int j = 0; j < VB; ++j) b_tile[at][col + j] = piece[j];
        }
#endif
        __syncthreads();
#pragma unroll UNROLL
        for (int at = 0; at < BK; ++at) {
            float left[ROWS], right[COLS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int row = STRIDED_M ? ty + i * TY : ty * ROWS + i;
#if STAGE_A
                left[i] = a_tile[at][row];
#else
                left[i] = row0 + row < m && base + at < k ? a[(size_t)(row0 + row) * k + base + at] : 0.0f;
#endif
            }
#pragma unroll
            for (int j = 0; j < COLS; ++j) {
                const int col = STRIDED_N ? tx + j * TX : tx * COLS + j;
#if STAGE_B
                right[j] = b_tile[at][col];
#else
                right[j] = base + at < k && col0 + col < n ? b[(size_t)(base + at) * n + col0 + col] : 0.0f;
#endif
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLS; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int row = row0 + (STRIDED_M ? ty + i * TY : ty * ROWS + i);
#pragma unroll
        for (int j = 0; j < COLS; ++j) {
            const int col = col0 + (STRIDED_N ? tx + j * TX : tx * COLS + j);
            if (row < m && col < n) out[(size_t)row * n + col] = sum[i][j];
        }
    }
}
