// /// opbench
// title     = "dp4a, four products per instruction, over shared-memory tiles; 4 x 4 outputs per thread"
// builds_on = "naive"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free"]
// tile      = { m = 64, n = 64, k = "4 * WORDS" }
// tune      = { WORDS = [16, 8] }
// requires  = ["cdiv(m, 64) <= 65535"]
// define.ALIGNED = "k % 4 == 0"
//
// [[launch]]
// kernel = "int8_matmul_dp4a"
// grid   = ["cdiv(n, 64)", "cdiv(m, 64)"]
// block  = [256]
// ///
//
// dp4a multiplies four bytes by four bytes and adds the products to a 32-bit sum: a quarter of the instructions and of
// the loads. Tiles in shared memory consist of words with four neighbouring elements along k, stored [k][row], so that
// four rows of a thread are one vector. Rows are swizzled by k, so that a warp stores to 32 banks. Rows whose length is
// not a multiple of 4 are loaded byte by byte. Limit: the dp4a rate of the CUDA cores, a fraction of that of the tensor
// cores.

// Return the index of a row in the line of the tile that holds word `word` of each row.
__device__ __forceinline__ int swizzled(int row, int word) { return row ^ word % 8 * 4; }

// Copy 64 rows of 4 * WORDS elements, which begin at (row0, at), to a tile; zeros outside. A warp copies 8 words of 4
// rows.
__device__ __forceinline__ void fill(int (&tile)[WORDS][64], const signed char* __restrict__ x, int row0, int at,
                                     int rows, int k) {
#pragma unroll
    for (int word = threadIdx.x; word < 64 * WORDS; word += 256) {
        const int line = word / 32 % (WORDS / 8) * 8 + word % 8, place = word / (4 * WORDS) * 4 + word % 32 / 8;
        const int row = row0 + place, column = at + line * 4;
        const signed char* from = x + (size_t)row * k + column;
        int bits = 0;
        if (row < rows) {
            if (ALIGNED) {
                if (column < k) bits = *reinterpret_cast<const int*>(from);
            } else {
                for (int i = 0; i < 4; ++i)
                    if (column + i < k) bits |= (int)((unsigned)(unsigned char)from[i] << 8 * i);
            }
        }
        tile[line][swizzled(place, line)] = bits;
    }
}

// a [m][k], b [n][k], out [m][n]
extern "C" __global__ void __launch_bounds__(256)
    int8_matmul_dp4a(const signed char* __restrict__ a, const signed char* __restrict__ b, int* __restrict__ out, int m,
                     int n, int k) {
    __shared__ __align__(16) int a_tile[WORDS][64], b_tile[WORDS][64];
    const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64;
    const int row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4;
    int sum[4][4] = {};
    for (int at = 0; at < k; at += 4 * WORDS) {
        fill(a_tile, a, row0, at, m, k);
        fill(b_tile, b, col0, at, n, k);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const int4 x = *reinterpret_cast<const int4*>(&a_tile[i][swizzled(row, i)]);
            const int4 y = *reinterpret_cast<const int4*>(&b_tile[i][swizzled(col, i)]);
            const int left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] = __dp4a(left[e / 4], right[e % 4], sum[e / 4][e % 4]);
        }
        __syncthreads();  // otherwise the next tile would overwrite data that slower warps still read
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        if (row0 + row + r >= m) break;
        int* to = out + (size_t)(row0 + row + r) * n + col0 + col;
        const int left = n - col0 - col;
        if (n % 4 == 0) {  // four columns by one store
            if (left > 0) *reinterpret_cast<int4*>(to) = make_int4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (e < left) to[e] = sum[r][e];
        }
    }
}
