// /// opbench
// title     = "warp tiles over two shared buffers; the next tile travels in registers meanwhile"
// builds_on = "vectorised"
// tune      = { BM = [64, 128, 256], BN = [64, 128, 256], BK = [8, 16], TM = [8], TN = [8, 16] }
// where     = ["(BM, BN, TN) in ((64, 64, 8), (128, 128, 8), (128, 256, 16), (256, 128, 16))"]
// requires  = ["b_order == 'row'"]
// launch    = [{ kernel = "matmul_warp_tile_double_buffer", grid = ["cdiv(m, BM) * cdiv(n, BN)"], block = ["BM * BN // (TM * TN)"] }]
// ///
//
// A warp owns a compact 64 x 32 or 64 x 64 tile, so its lanes read few distinct words of shared memory and the hardware
// broadcasts them; 8 x 16 outputs per thread need 6 float4 reads for 128 multiply-adds. While a tile is multiplied, the
// next one is already under way from global memory into registers and goes to the other shared buffer at the end: one
// barrier per tile and no waiting. Registers are double-buffered likewise between two steps of k. Limit: the issue slots
// of the multiply-adds themselves (93 to 95 % of all instructions in the loop), then the power limit. After CUTLASS's
// SIMT SGEMM (A. Kerr et al., 2017) and S. Gray's maxas.

#define THREADS (BM * BN / (TM * TN))
#define LANES_M 8  // a warp is 8 x 4 threads, so its tile is (8 * TM) x (4 * TN)
#define LANES_N 4
#define WARPS_N (BN / (LANES_N * TN))
#define A_PASSES (BM * BK / (4 * THREADS))  // float4 per thread and tile
#define B_PASSES (BK * BN / (4 * THREADS))

// Column of (k, i) in a transposed tile. The lanes that store one float4 each along k would hit the same banks; the xor
// spreads them over all 32 and, being a multiple of 4, keeps four neighbours together for float4 reads.
__device__ __forceinline__ int swizzle(int k, int i) { return i ^ (k / 4 * (128 / BK)); }

// Four neighbours of x [rows, cols] from (row, col), col a multiple of 4; zeros outside. `aligned`: cols % 4 == 0, so the
// four are all inside or all outside, and 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* __restrict__ x, int row, int col, int rows, int cols,
                                        bool aligned) {
  float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (row >= rows || col >= cols) return v;
  const float* p = x + (size_t)row * cols + col;
  if (aligned) return *reinterpret_cast<const float4*>(p);
  v.x = p[0];
  if (col + 1 < cols) v.y = p[1];
  if (col + 2 < cols) v.z = p[2];
  if (col + 3 < cols) v.w = p[3];
  return v;
}

// A column of four values into a transposed tile [BK][width].
__device__ __forceinline__ void store_transposed(float* tile, int width, int k, int i, float4 v) {
  float* p = tile + k * width + swizzle(k, i);
  p[0] = v.x;
  p[width] = v.y;
  p[2 * width] = v.z;
  p[3 * width] = v.w;
}

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN, a warp (8 * TM) x (4 * TN) of it, a thread TM x TN in groups of 4 x 4
// that lie 4 * LANES_M rows and 4 * LANES_N columns apart.
extern "C" __global__ void __launch_bounds__(THREADS, (TM * TN > 64 ? 256 : 512) / THREADS)
matmul_warp_tile_double_buffer(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                               int k) {
  static_assert(THREADS % 32 == 0 && BM % (LANES_M * TM) == 0 && BN % (LANES_N * TN) == 0, "whole warp tiles");
  static_assert(A_PASSES * 4 * THREADS == BM * BK && B_PASSES * 4 * THREADS == BK * BN, "whole passes");
  static_assert(BK == 8 || BK == 16, "the swizzle and the alternating registers");
  __shared__ __align__(16) float a_tiles[2][BK * BM];  // transposed and swizzled: [k][row]
  __shared__ __align__(16) float b_tiles[2][BK * BN];  // [k][column]
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int tiles_n = (n + BN - 1) / BN;
  const int row0 = blockIdx.x / tiles_n * BM, col0 = blockIdx.x % tiles_n * BN;
  // Lanes that differ in bit 0 read the same words of a, those that differ in bit 1 the same of b: a float4 read
  // of a half-warp then takes one pass over the banks instead of two (the lane order of S. Gray's maxas).
  const int y = warp / WARPS_N * LANES_M * TM + (lane / 2 % LANES_M) * 4;
  const int x = warp % WARPS_N * LANES_N * TN + (lane % 2 + lane / 16 * 2) * 4;
  const bool a_aligned = k % 4 == 0, out_aligned = n % 4 == 0;

  float4 a_next[A_PASSES], b_next[B_PASSES];
  const auto fetch = [&](int base) {
#pragma unroll
    for (int p = 0; p < A_PASSES; ++p) {
      const int i = tid + p * THREADS;
      a_next[p] = load4(a, row0 + i / (BK / 4), base + i % (BK / 4) * 4, m, k, a_aligned);
    }
#pragma unroll
    for (int p = 0; p < B_PASSES; ++p) {
      const int i = tid + p * THREADS;
      b_next[p] = load4(b, base + i / (BN / 4), col0 + i % (BN / 4) * 4, k, n, out_aligned);
    }
  };
  const auto stage = [&](int buffer) {
#pragma unroll
    for (int p = 0; p < A_PASSES; ++p) {
      const int i = tid + p * THREADS;
      store_transposed(a_tiles[buffer], BM, i % (BK / 4) * 4, i / (BK / 4), a_next[p]);
    }
#pragma unroll
    for (int p = 0; p < B_PASSES; ++p) {
      const int i = tid + p * THREADS;
      reinterpret_cast<float4*>(b_tiles[buffer])[i] = b_next[p];
    }
  };

  float a_part[2][TM], b_part[2][TN];
  const auto read = [&](int slot, int buffer, int i) {
#pragma unroll
    for (int r = 0; r < TM; r += 4)
      *reinterpret_cast<float4*>(&a_part[slot][r]) =
          *reinterpret_cast<const float4*>(&a_tiles[buffer][i * BM + swizzle(i, y) + r * LANES_M]);
#pragma unroll
    for (int c = 0; c < TN; c += 4)
      *reinterpret_cast<float4*>(&b_part[slot][c]) =
          *reinterpret_cast<const float4*>(&b_tiles[buffer][i * BN + x + c * LANES_N]);
  };

  float sum[TM][TN] = {};
  fetch(0);
  stage(0);
  __syncthreads();
  read(0, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int base = 0; base < k; base += BK) {
    const bool more = base + BK < k;
    if (more) fetch(base + BK);
#pragma unroll
    for (int i = 0; i < BK; ++i) {
      if (i < BK - 1) {
        read((i + 1) % 2, buffer, i + 1);
      } else if (more) {
        // The other buffer was last read before the previous barrier, so one barrier per tile is enough.
        stage(buffer ^ 1);
        __syncthreads();
        read(0, buffer ^ 1, 0);
      }
#pragma unroll
      for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int c = 0; c < TN; ++c) sum[r][c] += a_part[i % 2][r] * b_part[i % 2][c];
    }
    buffer ^= 1;
  }

#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const int row = row0 + y + r / 4 * 4 * LANES_M + r % 4;
    if (row >= m) continue;
#pragma unroll
    for (int c = 0; c < TN; c += 4) {
      const int col = col0 + x + c * LANES_N;
      float* p = out + (size_t)row * n + col;
      if (out_aligned) {
        if (col < n) *reinterpret_cast<float4*>(p) = make_float4(sum[r][c], sum[r][c + 1], sum[r][c + 2], sum[r][c + 3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (col + j < n) p[j] = sum[r][c + j];
      }
    }
  }
}
