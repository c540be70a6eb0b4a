// /// opbench
// title     = "bf16 mma.sync, fragments loaded element by element from padded shared-memory tiles"
// builds_on = "warp_tile_double_buffer"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free", "tensor_core",
// ]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
// tune      = { BM = [128, 64], BN = [128, 64] }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "matmul_mma_plain"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM // 64 * (BN // 32) * 32"]
// ///
//
// A tensor core multiplies small matrices. One instruction of a warp multiplies 16 x 16 elements of a by 16 x 8
// elements of b and adds the product to 16 x 8 sums; on CUDA cores this takes 64 multiply-adds per thread. The 32
// threads of a warp hold the three matrices together, in registers. The instruction defines which thread holds which
// element; this is the only new idea here. The tiles, the loads of 16 bytes and the 64 x 32 outputs per warp are those
// of the previous variants. Each row of a tile has eight elements of padding, so that the loads of a fragment have no
// bank conflicts. There is no double buffer, to keep the kernel short. Limit: for 16 mma instructions, a warp needs 16
// loads of 4 bytes for a and 8 pairs of loads of 2 bytes for b, because elements that are neighbours in depth are in
// two rows of b; and the tensor cores wait while the next tiles are loaded. Layout of the fragments: PTX ISA, "Matrix
// Fragments for mma.m16n8k16".

#include <cuda_bf16.h>

constexpr int BK = 64;           // depth of a step
constexpr int WM = 64, WN = 32;  // outputs of a warp
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int A_PITCH = BK + 8, B_PITCH = BN + 8;  // elements from one row of a tile to the next
typedef unsigned short Bits;                       // the bits of a bf16, because this kernel only copies them

// sum += a * b: 16 x 8 outputs over a depth of 16. Thread t of the warp holds, with g = t / 4 and p = t % 4 * 2:
// a[0], a[1]: rows g and g + 8, columns p and p + 1; a[2], a[3]: the same rows, columns p + 8 and p + 9;
// b[0]: rows p and p + 1 of column g; b[1]: rows p + 8 and p + 9 of column g;
// sum[0..3]: columns p and p + 1 of row g, then of row g + 8.
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint4 load8(const __nv_bfloat16* from, bool inside) {
    return inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0u, 0u, 0u, 0u);
}

// a [m][k], b [k][n], out [m][n], all aligned to 16 bytes
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_mma_plain(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                     __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    __shared__ __align__(16) Bits a_tile[BM][A_PITCH], b_tile[BK][B_PITCH];
    const int tiles_m = (m + BM - 1) / BM;  // neighbouring blocks share the columns of b
    const int row0 = (int)(blockIdx.x % tiles_m) * BM, col0 = (int)(blockIdx.x / tiles_m) * BN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    const int group = lane / 4, pair = lane % 4 * 2;
    float sum[WM / 16][WN / 8][4] = {};

    for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
            const int row = i / (BK / 8), at = i % (BK / 8) * 8;
            const __nv_bfloat16* from = a + (size_t)(row0 + row) * k + k0 + at;
            *reinterpret_cast<uint4*>(&a_tile[row][at]) = load8(from, row0 + row < m && k0 + at < k);
        }
#pragma unroll
        for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
            const int row = i / (BN / 8), at = i % (BN / 8) * 8;
            const __nv_bfloat16* from = b + (size_t)(k0 + row) * n + col0 + at;
            *reinterpret_cast<uint4*>(&b_tile[row][at]) = load8(from, k0 + row < k && col0 + at < n);
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            unsigned a_part[WM / 16][4], b_part[WN / 8][2];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = warp_row + i * 16 + group + e % 2 * 8, at = kk + pair + e / 2 * 8;
                    a_part[i][e] = *reinterpret_cast<const unsigned*>(&a_tile[row][at]);
                }
#pragma unroll
            for (int j = 0; j < WN / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int row = kk + pair + e * 8, col = warp_col + j * 8 + group;
                    b_part[j][e] = b_tile[row][col] | (unsigned)b_tile[row + 1][col] << 16;
                }
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j) multiply(sum[i][j], a_part[i], b_part[j]);
        }
        __syncthreads();  // before the next step overwrites the tiles
    }

#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row0 + warp_row + i * 16 + half * 8 + group;
#pragma unroll
            for (int j = 0; j < WN / 8; ++j) {
                const int col = col0 + warp_col + j * 8 + pair;
                if (row < m && col < n)
                    *reinterpret_cast<__nv_bfloat162*>(out + (size_t)row * n + col) =
                        __floats2bfloat162_rn(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
        }
}
