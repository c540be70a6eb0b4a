// /// opbench
// title     = "few rows: a block streams a strip of columns of b in 16-byte loads, k split over its threads"
// builds_on = "coalesced"
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "sliced_k"]
// supports  = { dtype = ["f32", "bf16"] }
// define.BF16   = "1 if dtype == 'bf16' else 0"
// define.M_TILE = "1 if m == 1 else 2 if m == 2 else 4 if m <= 4 or dtype == 'bf16' else 8"
// define.M_STEP = "4 if dtype == 'bf16' else 8"
// tune      = { LANES = [8, 4, 16], DEPTH = [4, 8], THREADS = [512, 256] }
// where     = ["(LANES, DEPTH, THREADS) in ((8, 4, 512), (8, 8, 256), (4, 8, 256), (16, 4, 512))"]
//
// [[launch]]
// kernel = "matmul_stream_strip"
// grid   = ["cdiv(m, 4 if dtype == 'bf16' else 8) * cdiv(n, LANES * (8 if dtype == 'bf16' else 4))"]
// block  = ["THREADS"]
// ///
//
// With few rows of a, the time is that of reading b. This variant reads b once for up to 8 rows of a at a time (4 in
// bf16, as 16 bytes are twice as many columns). LANES neighbouring threads read 64 to 256 contiguous bytes of a row of
// b, and each thread has DEPTH such rows in flight: 64 KB and more per multiprocessor, as DRAM's latency requires. The
// strips are narrow, so that 4096 columns give every multiprocessor one. The threads of a block divide k; their sums
// are added by shuffles and in shared memory, in a fixed order. Limit: DRAM, for one or two rows; then the
// multiply-adds. After the transposed matrix-vector products of BLAS libraries (MAGMA's and KBLAS's gemv).

#include <opbench/row_stream.cuh>
using namespace opbench;

typedef Element<BF16> T;
#define VEC (BF16 ? 8 : 4)  // numbers in 16 bytes
#define SUMS (M_TILE * VEC)
#define WARPS (THREADS / 32)

// Load a[i] to a[i + 3] of a row of length k, with zeros after its end. `aligned`: k is a multiple of 4.
__device__ __forceinline__ void load4(const T* __restrict__ row, int i, int k, bool aligned, float (&value)[4]) {
#if BF16
    if (aligned && i < k) {
        const uint2 raw = *reinterpret_cast<const uint2*>(row + i);
        value[0] = __uint_as_float(raw.x << 16), value[1] = __uint_as_float(raw.x & 0xffff0000u);
        value[2] = __uint_as_float(raw.y << 16), value[3] = __uint_as_float(raw.y & 0xffff0000u);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = i + j < k ? __bfloat162float(row[i + j]) : 0.0f;
#else
    if (aligned && i < k) {
        const float4 raw = *reinterpret_cast<const float4*>(row + i);
        value[0] = raw.x, value[1] = raw.y, value[2] = raw.z, value[3] = raw.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = i + j < k ? row[i + j] : 0.0f;
#endif
}

// a [m, k], b [k, n], out [m, n]; a block computes M_TILE x (LANES * VEC) outputs, a thread DEPTH of every
// THREADS / LANES * DEPTH terms of M_TILE x VEC of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_stream_strip(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int m, int n, int k) {
    __shared__ float parts[WARPS][SUMS][LANES];
    const int tiles_m = (m + M_STEP - 1) / M_STEP;
    const int row0 = blockIdx.x % tiles_m * M_STEP, col0 = blockIdx.x / tiles_m * (LANES * VEC);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lane_column = threadIdx.x % LANES;
    const int col = col0 + lane_column * VEC;
    const bool n_aligned = n % VEC == 0, k_aligned = k % 4 == 0;
    float sum[SUMS] = {};
#pragma unroll 1
    for (int base = threadIdx.x / LANES * DEPTH; base < k; base += THREADS / LANES * DEPTH) {
        uint4 w[DEPTH];  // all loads first, so that they are under way together
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            w[d] = base + d < k ? load16(b + (size_t)(base + d) * n, col, n, n_aligned) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
        for (int quad = 0; quad < DEPTH; quad += 4) {
            float part[M_TILE][4];
#pragma unroll
            for (int mm = 0; mm < M_TILE; ++mm)  // rows beyond m repeat the last one
                load4(a + (size_t)min(row0 + mm, m - 1) * k, base + quad, k, k_aligned, part[mm]);
#pragma unroll
            for (int d = 0; d < 4; ++d) {
                float wide[VEC];
                unpack(w[quad + d], wide);
#pragma unroll
                for (int mm = 0; mm < M_TILE; ++mm)
#pragma unroll
                    for (int j = 0; j < VEC; ++j) sum[mm * VEC + j] += part[mm][d] * wide[j];
            }
        }
    }
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
#pragma unroll
        for (int offset = 16; offset >= LANES; offset /= 2) sum[s] += __shfl_xor_sync(0xffffffffu, sum[s], offset);
        if (lane < LANES) parts[warp][s][lane_column] = sum[s];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS * LANES; i += THREADS) {
        const int mm = i / (LANES * VEC), c = i % (LANES * VEC);  // neighbours in `out` for neighbouring threads
        if (row0 + mm >= m || col0 + c >= n) continue;
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += parts[w][mm * VEC + c % VEC][c / VEC];
#if BF16
        out[(size_t)(row0 + mm) * n + col0 + c] = __float2bfloat16(total);
#else
        out[(size_t)(row0 + mm) * n + col0 + c] = total;
#endif
    }
}
