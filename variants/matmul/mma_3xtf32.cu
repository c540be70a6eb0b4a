// /// opbench
// title     = "float32 accuracy from TF32 matrix instructions: operands split in two, three products, sums promoted"
// builds_on = "mma_tf32"
// precision = "f32"
// product   = "tf32x3"
// compute_capability = "8.0"
// supports  = { b_order = ["row", "col"] }
// define.B_ROWS    = "1 if b_order == 'row' else 0"
// define.K_ALIGNED = "1 if k % 4 == 0 else 0"
// define.N_ALIGNED = "1 if n % 4 == 0 else 0"
// tune      = { BM = [128, 64, 32], BN = [128, 32], WN = [32], WK = [1, 4, 8], STAGES = [4, 3, 2] }
// where     = [
//  "(BM, BN, WN, WK, STAGES) in ((128, 128, 32, 1, 4), (64, 128, 32, 1, 4), (128, 32, 32, 4, 2), (32, 32, 32, 8, 3))",
// ]
// launch    = [
//   { kernel = "matmul_mma_3xtf32", grid = [
//     "cdiv(m, BM) * cdiv(n, BN)",
//   ], block = ["32 * WK * (BM // min(BM, 64)) * (BN // WN)"], shared = "STAGES * WK * (BM + BN) * 128" },
// ]
// ///
//
// Each operand is the sum of a big and a small TF32 number, and three of the four products make float32's accuracy: the
// fourth is below its last digit. The matrix unit's sums lose digits as they grow, so the sum of each tile of 32 k is
// added to ordinary registers. That costs twice the accumulators, so a warp has 64 x 32 outputs. Limit: three times the
// matrix instructions, and mma.sync's 62 % of Hopper's matrix units; for few rows DRAM. After H. Ootomo and R. Yokota,
// Recovering single precision accuracy from Tensor Cores (2022), and CUTLASS's example 27. b stored by rows is read by
// words of 4 bytes, as ldmatrix transposes 16-bit numbers only.

typedef float T;
#define CHUNK 4          // numbers in 16 bytes
#define KT (8 * CHUNK)   // k of a tile: rows of 128 bytes, 8 chunks
#define STEP (2 * CHUNK) // k of one matrix instruction
#define WM (BM < 64 ? BM : 64)
#define MT (WM / 16)     // instructions of 16 x 8 in a warp's tile
#define NT (WN / 8)
#define WARPS_M (BM / WM)
#define WARPS_N (BN / WN)
#define THREADS (32 * WARPS_M * WARPS_N * WK)
#define STAGE_BYTES (WK * (BM + BN) * 128)

// 16 bytes into shared memory, of which the first `left` numbers exist; zeros for the others. ALIGNED: the row's length
// is a multiple of CHUNK, so all exist or none does, and the copy is asynchronous; one of nothing reads nothing.
template <int ALIGNED>
__device__ __forceinline__ void copy16(unsigned to, const T* __restrict__ from, int left) {
  if (ALIGNED) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(left > 0 ? 16 : 0)
                 : "memory");
    return;
  }
  unsigned word[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (j < left) word[j] = __float_as_uint(from[j]);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
               "r"(word[3]) : "memory");
}

// ROWS rows of k numbers for each of WK slices. `from` is this thread's first chunk in device memory, `to` its place;
// `rows_left` and `k_left` are counted from there. The chunks of a row are permuted by its number, so that both these
// writes and ldmatrix, which reads one chunk of 8 rows at a time, touch every bank once.
template <int ROWS>
__device__ __forceinline__ void fetch_rows(unsigned to, const T* __restrict__ from, int rows_left, int k_left, int k) {
  constexpr int STRIDE = THREADS / 8;  // rows that the block copies at once
  static_assert(ROWS % STRIDE == 0 && STRIDE % 8 == 0, "tiles are fetched in whole passes");
  constexpr int UNROLL = K_ALIGNED ? 8 : 1;  // loads number by number would take too many registers
#pragma unroll UNROLL
  for (int slice = 0; slice < WK; ++slice) {
    const T* row = from + slice * KT;
#pragma unroll UNROLL
    for (int p = 0; p < ROWS / STRIDE; ++p) {
      const int left = p * STRIDE < rows_left ? k_left - slice * KT : 0;
      copy16<K_ALIGNED>(to + (slice * ROWS + p * STRIDE) * 128, row, left);
      row += (size_t)STRIDE * k;
    }
  }
}

#if B_ROWS
// WK * KT rows of BN numbers of b [k, n] as they are stored, their chunks permuted by the row's number.
#define B_CHUNKS (BN / CHUNK)
// A warp reads 8 neighbours of 4 rows at a time.
#define B_SWIZZLE(row) ((row) % 4 * 2)
__device__ __forceinline__ void fetch_columns(unsigned to, const T* __restrict__ from, int cols_left, int k_left,
                                              int n) {
  constexpr int STRIDE = THREADS / B_CHUNKS;  // rows that the block copies at once
  static_assert(WK * KT % STRIDE == 0 && B_SWIZZLE(STRIDE) == 0, "tiles are fetched in whole passes");
  constexpr int UNROLL = N_ALIGNED ? 16 : 1;
#pragma unroll UNROLL
  for (int p = 0; p < WK * KT / STRIDE; ++p) {
    copy16<N_ALIGNED>(to + p * THREADS * 16, from, p * STRIDE < k_left ? cols_left : 0);
    from += (size_t)STRIDE * n;
  }
}
#endif

__device__ __forceinline__ void ldmatrix(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(at) : "memory");
}

#if B_ROWS
__device__ __forceinline__ unsigned load_shared(unsigned at) {
  unsigned word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}
#endif

// To the 10 digits of TF32, halves away from zero; the instruction itself would only cut off.
__device__ __forceinline__ unsigned round_tf32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}

// value = big + small but for 2^-22 of it: both have TF32's 11 digits.
__device__ __forceinline__ void split(unsigned value, unsigned& big, unsigned& small) {
  big = round_tf32(__uint_as_float(value));
  small = round_tf32(__uint_as_float(value) - __uint_as_float(big));
}

extern __shared__ __align__(128) unsigned char stages[];  // [STAGES], each the WK tiles of a, then those of b

// a [m, k], b [k, n] (B_ROWS) or [n, k], out [m, n]; a block computes BM x BN, a warp WM x WN over every WK-th tile.
extern "C" __global__ void __launch_bounds__(THREADS)
matmul_mma_3xtf32(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int m, int n, int k) {
  static_assert(WK * BM * BN * 2 <= STAGES * STAGE_BYTES, "the slices' sums meet in the same memory");
  const int tiles_m = (m + BM - 1) / BM;
  const int row0 = blockIdx.x % tiles_m * BM, col0 = blockIdx.x / tiles_m * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N, slice = warp / (WARPS_M * WARPS_N);
  const unsigned shared = (unsigned)__cvta_generic_to_shared(stages);
  // What this thread copies of each tile: chunk tid % 8 of row tid / 8, and of the rows that follow at a distance.
  const int tid = threadIdx.x, a_from_row = row0 + tid / 8;
  const unsigned a_to = tid / 8 * 128 + (tid % 8 ^ tid / 8 % 8) * 16;
  const T* a_from = a + (size_t)a_from_row * k + tid % 8 * CHUNK;
  int k_left = k - tid % 8 * CHUNK;
#if B_ROWS  // chunk tid % B_CHUNKS of row tid / B_CHUNKS, and so on
  const int b_row = tid / B_CHUNKS, b_col = col0 + tid % B_CHUNKS * CHUNK;
  const unsigned b_to = (b_row * B_CHUNKS + (tid % B_CHUNKS ^ B_SWIZZLE(b_row))) * 16;
  const T* b_from = b + (size_t)b_row * n + b_col;
  int b_left = k - b_row;
#else
  const int b_from_row = col0 + tid / 8;
  const T* b_from = b + (size_t)b_from_row * k + tid % 8 * CHUNK;
#endif
  const auto fetch = [&](unsigned to) {  // the next tile; beyond the end it writes zeros
    fetch_rows<BM>(to + a_to, a_from, m - a_from_row, k_left, k);
    a_from += WK * KT;
#if B_ROWS
    fetch_columns(to + WK * BM * 128 + b_to, b_from, n - b_col, b_left, n);
    b_from += (size_t)(WK * KT) * n;
    b_left -= WK * KT;
#else
    fetch_rows<BN>(to + WK * BM * 128 + a_to, b_from, n - b_from_row, k_left, k);
    b_from += WK * KT;
#endif
    k_left -= WK * KT;
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Where this lane's rows begin for ldmatrix, and its chunk of them in step 0; step s is the chunk ^ 2 s.
  const unsigned a_row = (slice * BM + warp_m * WM + lane % 16) * 128;
  const unsigned a_chunk = (lane / 16 ^ lane % 8) * 16;
#if B_ROWS
  const int b_at_row = slice * KT + lane % 4;
  const unsigned b_at = WK * BM * 128 + lane / 4 % 4 * 4 +
                        (b_at_row * B_CHUNKS + ((warp_n * (WN / 4) + lane / 16) ^ B_SWIZZLE(b_at_row))) * 16;
#else
  const unsigned b_row = WK * BM * 128 + (slice * BN + warp_n * WN + lane / 16 * 8 + lane % 8) * 128;
  const unsigned b_chunk = (lane / 8 % 2 ^ lane % 8) * 16;
#endif
  unsigned a_part[2][MT][4], b_part[2][NT][2];  // two steps: one is multiplied while the next is read
  const auto read = [&](unsigned from, int step, int into) {
#pragma unroll
    for (int i = 0; i < MT; ++i)
      ldmatrix(a_part[into][i][0], a_part[into][i][1], a_part[into][i][2], a_part[into][i][3],
               from + a_row + i * (16 * 128) + (a_chunk ^ step * 32));
#if B_ROWS
#pragma unroll
    for (int j = 0; j < NT; ++j)  // 8 columns on, 2 chunks: below 8 of them part of the permutation
#pragma unroll
      for (int half = 0; half < 2; ++half)
        b_part[into][j][half] = load_shared(from + (b_at ^ j % 4 * 32) + j / 4 * 128 +
                                            (step * STEP + half * 4) * B_CHUNKS * 16);
#else
#pragma unroll
    for (int j = 0; j < NT; j += 2)
      ldmatrix(b_part[into][j][0], b_part[into][j][1], b_part[into][j + 1][0], b_part[into][j + 1][1],
               from + b_row + j * (8 * 128) + (b_chunk ^ step * 32));
#endif
  };

  float sum[MT][NT][4] = {};
  float part[MT][NT][4] = {};  // of one tile
#pragma unroll
  for (int s = 0; s < STAGES; ++s) fetch(shared + s * STAGE_BYTES);
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
  __syncthreads();
  read(shared, 0, 0);
  unsigned place = shared;
#pragma unroll 1
  for (int base = 0; base < k; base += WK * KT) {
    const unsigned next = place == shared + (STAGES - 1) * STAGE_BYTES ? shared : place + STAGE_BYTES;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < 3) {
        read(place, step + 1, (step + 1) % 2);
      } else {
        // All warps have read this tile, so its place takes the one that is STAGES further on.
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        read(next, 0, 0);
        fetch(place);
      }
      unsigned b_big[NT][2], b_small[NT][2];
#pragma unroll
      for (int j = 0; j < NT * 2; ++j)
        split(b_part[step % 2][j / 2][j % 2], b_big[j / 2][j % 2], b_small[j / 2][j % 2]);
#pragma unroll
      for (int i = 0; i < MT; ++i) {
        unsigned a_big[4], a_small[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) split(a_part[step % 2][i][j], a_big[j], a_small[j]);
        // The small products first, before the sum has grown; each round is over NT sums, so none waits for itself.
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply(part[i][j], a_small, b_big[j]);
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply(part[i][j], a_big, b_small[j]);
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply(part[i][j], a_big, b_big[j]);
      }
    }
    // The matrix unit's own sums lose digits as they grow: after each tile they go to ordinary float32.
#pragma unroll
    for (int i = 0; i < MT * NT * 4; ++i) {
      sum[i / 4 / NT][i / 4 % NT][i % 4] += part[i / 4 / NT][i / 4 % NT][i % 4];
      part[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
    }
    place = next;
  }

#if WK > 1
  // Half of the slices hand their sums to the other half, until the first has them all: a fixed order.
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  float* exchange = reinterpret_cast<float*>(stages) + (warp % (WARPS_M * WARPS_N)) * (WM * WN) + lane;
#pragma unroll
  for (int half = WK / 2; half > 0; half /= 2) {
    float* own = exchange + slice % half * (BM * BN);
    if (slice >= half && slice < 2 * half) {
#pragma unroll
      for (int i = 0; i < MT * NT * 4; ++i) own[i * 32] = sum[i / 4 / NT][i / 4 % NT][i % 4];
    }
    __syncthreads();
    if (slice < half) {
#pragma unroll
      for (int i = 0; i < MT * NT * 4; ++i) sum[i / 4 / NT][i / 4 % NT][i % 4] += own[i * 32];
    }
    __syncthreads();
  }
  if (slice > 0) return;
#endif
#pragma unroll
  for (int j = 0; j < NT; ++j) {
    const int col = col0 + warp_n * WN + j * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
      const int row = row0 + warp_m * WM + i * 8 + lane / 4;
      if (row >= m || col >= n) continue;
      const float first = sum[i / 2][j][i % 2 * 2], second = sum[i / 2][j][i % 2 * 2 + 1];
      T* p = out + (size_t)row * n + col;
      if (n % 2 == 0) {
        *reinterpret_cast<float2*>(p) = make_float2(first, second);
      } else {
        p[0] = first;
        if (col + 1 < n) p[1] = second;
      }
    }
  }
}
