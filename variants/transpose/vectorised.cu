// /// opbench
// title     = "float4 on all four sides: 4×4 turned in registers, 64×64 through a swizzled tile"
// builds_on = "padded"
// tune      = { ROWS = [4, 8, 16], BAND = [1, 8] }
// launch    = [{ kernel = "transpose_vectorised", grid = ["cdiv(rows, 64) * cdiv(cols, 64)"], block = ["16 * ROWS"] }]
// ///
//
// A thread reads four float4 below each other, turns the 4x4 in registers (which costs nothing: it is naming) and
// passes four float4 through shared memory to the thread that writes them: a quarter of the load and store instructions
// of the rung below, global and shared, and 64 bytes in flight per thread and 4x4. The tile is not padded but swizzled:
// the float4 of a row change places by an xor, so that both the store and the load of every eight lanes cover all banks
// once. Tiles are taken in bands of BAND tile rows, column by column, so that blocks running together touch compact
// parts of both matrices. Limit: memory bandwidth; reads and writes alternate on the same bus. Rows whose length does
// not divide by 4 fall back to scalar accesses on that side. After G. Ruetsch and P. Micikevicius, Optimizing Matrix
// Transpose in CUDA (2009), and the xor layouts of CUTLASS.

// Place of float4 number q in row c of the tile, 16 to a row.
__device__ __forceinline__ int swizzle(int c, int q) { return c * 16 + (q ^ (c / 4 % 16)); }

// x [rows, cols], out [cols, rows]; a block turns 64 x 64, a thread 16 / ROWS pieces of 4 x 4.
extern "C" __global__ void __launch_bounds__(16 * ROWS)
transpose_vectorised(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
  __shared__ float4 tile[64 * 16];  // [column][row / 4], swizzled
  const unsigned tiles_x = (cols + 63) / 64, tiles_y = (rows + 63) / 64;
  const unsigned band = blockIdx.x / (BAND * tiles_x) * BAND;  // first tile row of this block's band
  const unsigned height = min((unsigned)BAND, tiles_y - band), place = blockIdx.x - band * tiles_x;
  const int row0 = (band + place % height) * 64, col0 = place / height * 64;
  const int q = threadIdx.x % 16, line = threadIdx.x / 16;
  const bool read_aligned = cols % 4 == 0, write_aligned = rows % 4 == 0;

#pragma unroll
  for (int p = 0; p < 16 / ROWS; ++p) {
    const int r = line + p * ROWS;  // row of 4x4 pieces
    const int row = row0 + r * 4, col = col0 + q * 4;
    float4 v[4];
    if (read_aligned) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4* from = reinterpret_cast<const float4*>(x + (size_t)(row + i) * cols + col);
        v[i] = row + i < rows && col < cols ? __ldcs(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = x + (size_t)(row + i) * cols + col;
        const int left = row + i < rows ? cols - col : 0;
        v[i] = make_float4(left > 0 ? from[0] : 0.0f, left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f,
                           left > 3 ? from[3] : 0.0f);
      }
    }
    tile[swizzle(q * 4 + 0, r)] = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
    tile[swizzle(q * 4 + 1, r)] = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
    tile[swizzle(q * 4 + 2, r)] = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
    tile[swizzle(q * 4 + 3, r)] = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64 / ROWS; ++i) {
    const int c = line + i * ROWS;
    const float4 v = tile[swizzle(c, q)];
    const int row = row0 + q * 4, col = col0 + c;
    float* p = out + (size_t)col * rows + row;
    if (col >= cols) continue;
    if (write_aligned) {
      if (row < rows) __stcs(reinterpret_cast<float4*>(p), v);
    } else {
      if (row + 0 < rows) p[0] = v.x;
      if (row + 1 < rows) p[1] = v.y;
      if (row + 2 < rows) p[2] = v.z;
      if (row + 3 < rows) p[3] = v.w;
    }
  }
}
