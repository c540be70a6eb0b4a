// /// opbench
// title     = "float4 loads and stores: 4×4 transposed in registers, 64×64 through a swizzled shared-memory tile"
// builds_on = "padded"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_transpose", "bank_conflict_free"]
// tune      = { ROWS = [8, 4, 16], BAND = [1, 8] }
//
// [[launch]]
// kernel = "transpose_vectorised"
// grid   = ["cdiv(rows, 64) * cdiv(cols, 64)"]
// block  = ["16 * ROWS"]
// ///
//
// A thread reads float4 from four consecutive rows and transposes the 4x4 elements in registers. This takes no
// instruction, because the compiler only renames registers. Then it passes four float4 through shared memory to the
// thread that writes them. So a thread executes a quarter of the load and store instructions of the previous variant,
// global and shared, and has 64 bytes in flight for each 4x4. The tile is swizzled instead of padded: the float4 of a
// row are permuted by an xor, so that the stores and the loads of every eight lanes use each bank once. Tiles are
// processed in bands of BAND tile rows, column by column, so that blocks that run together access compact parts of both
// matrices. Limit: memory bandwidth; reads and writes alternate on the same bus. If a row length is not a multiple of
// 4, accesses on that side are scalar. After G. Ruetsch and P. Micikevicius, Optimizing Matrix Transpose in CUDA
// (2009), and the xor layouts of CUTLASS.

#define PIECES (16 / ROWS)  // 4 x 4 pieces per thread

// Return the index of float4 number q in row c of the tile, which has 16 per row.
__device__ __forceinline__ int swizzle(int c, int q) { return c * 16 + (q ^ (c / 4 % 16)); }

// x [rows, cols], out [cols, rows]; a block transposes 64 x 64 elements, a thread PIECES of 4 x 4.
extern "C" __global__ void __launch_bounds__(16 * ROWS)
    transpose_vectorised(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    __shared__ float4 tile[64 * 16];  // [column][row / 4], swizzled
    const unsigned tiles_x = (cols + 63) / 64, tiles_y = (rows + 63) / 64;
    const unsigned band = blockIdx.x / (BAND * tiles_x) * BAND;  // first tile row of this block's band
    const unsigned height = min((unsigned)BAND, tiles_y - band), place = blockIdx.x - band * tiles_x;
    const int row0 = (band + place % height) * 64, col0 = place / height * 64;
    const int q = threadIdx.x % 16, line = threadIdx.x / 16;
    const bool read_aligned = cols % 4 == 0, write_aligned = rows % 4 == 0;

    float4 v[PIECES][4];  // [piece][row]
    const int left = cols - col0 - q * 4;
    if (read_aligned) {
#pragma unroll
        for (int i = 0; i < PIECES * 4; ++i) {
            const int row = row0 + (line + i / 4 * ROWS) * 4 + i % 4;
            const float4* from = reinterpret_cast<const float4*>(x + (size_t)row * cols + col0 + q * 4);
            v[i / 4][i % 4] = row < rows && left > 0 ? __ldcs(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    } else {
#pragma unroll
        for (int i = 0; i < PIECES * 4; ++i) {
            const int row = row0 + (line + i / 4 * ROWS) * 4 + i % 4;
            const float* from = x + (size_t)row * cols + col0 + q * 4;
            const int here = row < rows ? left : 0;
            v[i / 4][i % 4] = make_float4(here > 0 ? from[0] : 0.0f, here > 1 ? from[1] : 0.0f,
                                          here > 2 ? from[2] : 0.0f, here > 3 ? from[3] : 0.0f);
        }
    }
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
        const int r = line + p * ROWS;
        tile[swizzle(q * 4 + 0, r)] = make_float4(v[p][0].x, v[p][1].x, v[p][2].x, v[p][3].x);
        tile[swizzle(q * 4 + 1, r)] = make_float4(v[p][0].y, v[p][1].y, v[p][2].y, v[p][3].y);
        tile[swizzle(q * 4 + 2, r)] = make_float4(v[p][0].z, v[p][1].z, v[p][2].z, v[p][3].z);
        tile[swizzle(q * 4 + 3, r)] = make_float4(v[p][0].w, v[p][1].w, v[p][2].w, v[p][3].w);
    }
    __syncthreads();
    const int row = row0 + q * 4;
    float* to = out + (size_t)(col0 + line) * rows + row;
    if (write_aligned) {
#pragma unroll
        for (int i = 0; i < PIECES * 4; ++i) {
            const int c = line + i * ROWS;
            const float4 turned = tile[swizzle(c, q)];
            if (col0 + c < cols && row < rows)
                __stcs(reinterpret_cast<float4*>(to + (size_t)(i * ROWS) * rows), turned);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < PIECES * 4; ++i) {
        const int c = line + i * ROWS;
        const float4 turned = tile[swizzle(c, q)];
        float* p = to + (size_t)(i * ROWS) * rows;
        const int here = col0 + c < cols ? rows - row : 0;
        if (here > 0) p[0] = turned.x;
        if (here > 1) p[1] = turned.y;
        if (here > 2) p[2] = turned.z;
        if (here > 3) p[3] = turned.w;
    }
}
