// /// opbench
// title     = "float4 loads, a transposed in shared memory, so that shared reads are float4 too"
// builds_on = "register_tile_2d"
// tune      = { BM = [64, 128], BN = [64, 128], BK = [8, 16], TM = [4, 8], TN = [4, 8] }
// where     = ["(BM, BN, TM, TN) in ((64, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 8))"]
// requires  = ["b_order == 'row'", "cdiv(m, BM) <= 65535"]
// launch    = [{ kernel = "matmul_vectorised", grid = ["cdiv(n, BN)", "cdiv(m, BM)"], block = ["BM * BN // (TM * TN)"] }]
// ///
//
// Sixteen bytes per load, global and shared: a quarter of the load instructions of the rung below, and their index
// arithmetic with them. For the shared reads of a to be float4 along the rows, its tile is stored transposed; the four
// scalar stores of a float4 would collide in the banks, which the padding of 4 words prevents (BK = 8; 2-way for 16).
// Limit: every step loads, waits and then computes, and the lanes of a warp lie in a flat row, so they share little.
// After "kernel 6" of S. Boehm, How to Optimize a CUDA Matmul Kernel (2022).

#define THREADS_X (BN / TN)
#define THREADS_Y (BM / TM)
#define THREADS (THREADS_X * THREADS_Y)

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

// a [m, k], b [k, n], out [m, n]; a block computes BM x BN; a thread's rows are groups of 4 that lie 4 * THREADS_Y apart,
// its columns groups of 4 that lie 4 * THREADS_X apart.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_vectorised(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, int m, int n,
                  int k) {
  static_assert(BM * BK % (4 * THREADS) == 0 && BK * BN % (4 * THREADS) == 0, "tiles are loaded in whole passes");
  __shared__ __align__(16) float a_tile[BK][BM + 4];  // transposed: [k][row]
  __shared__ __align__(16) float b_tile[BK][BN];
  const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
  const int x = threadIdx.x % THREADS_X * 4, y = threadIdx.x / THREADS_X * 4;
  const bool a_aligned = k % 4 == 0, b_aligned = n % 4 == 0;
  float sum[TM][TN] = {};
  for (int base = 0; base < k; base += BK) {
#pragma unroll
    for (int i = threadIdx.x * 4; i < BM * BK; i += THREADS * 4) {
      const int row = i / BK, col = i % BK;
      const float4 v = load4(a, row0 + row, base + col, m, k, a_aligned);
      a_tile[col + 0][row] = v.x;
      a_tile[col + 1][row] = v.y;
      a_tile[col + 2][row] = v.z;
      a_tile[col + 3][row] = v.w;
    }
#pragma unroll
    for (int i = threadIdx.x * 4; i < BK * BN; i += THREADS * 4) {
      *reinterpret_cast<float4*>(&b_tile[i / BN][i % BN]) = load4(b, base + i / BN, col0 + i % BN, k, n, b_aligned);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BK; ++i) {
      float a_part[TM], b_part[TN];
#pragma unroll
      for (int r = 0; r < TM; r += 4)
        *reinterpret_cast<float4*>(&a_part[r]) = *reinterpret_cast<const float4*>(&a_tile[i][y + r * THREADS_Y]);
#pragma unroll
      for (int c = 0; c < TN; c += 4)
        *reinterpret_cast<float4*>(&b_part[c]) = *reinterpret_cast<const float4*>(&b_tile[i][x + c * THREADS_X]);
#pragma unroll
      for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int c = 0; c < TN; ++c) sum[r][c] += a_part[r] * b_part[c];
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < TM; ++r) {
    const int row = row0 + y + r / 4 * 4 * THREADS_Y + r % 4;
    if (row >= m) continue;
#pragma unroll
    for (int c = 0; c < TN; c += 4) {
      const int col = col0 + x + c * THREADS_X;
      float* p = out + (size_t)row * n + col;
      if (b_aligned && col < n) *reinterpret_cast<float4*>(p) = make_float4(sum[r][c], sum[r][c + 1], sum[r][c + 2], sum[r][c + 3]);
      if (b_aligned) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (col + j < n) p[j] = sum[r][c + j];
    }
  }
}
