// /// opbench
// title     = "ldmatrix from swizzled shared-memory tiles: four 8x8 matrices per instruction, b transposed by it"
// builds_on = "mma_plain"
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
// kernel = "matmul_mma_ldmatrix"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM // 64 * (BN // 32) * 32"]
// ///
//
// ldmatrix loads four 8 x 8 matrices at once and gives each thread the elements that mma.sync expects from it; each
// thread passes the address of one row of 16 bytes. With .trans, ldmatrix also transposes the matrices, so b, stored by
// rows, does not need 2-byte loads any more: 6 instructions replace the 32 loads of mma_plain for the same 16 products.
// The eight rows of a matrix are one row of the tile apart, so without further measures they would be in the same
// banks. Instead of padding, the 16-byte chunks of a row are permuted (swizzled): a chunk's index is xor-ed with the
// row's index. Then the same chunk of eight rows covers all 32 banks once, and so do the 16-byte stores that fill the
// tile. Limit: the tiles still pass through registers, and the tensor cores wait while the next tiles are loaded. After
// the shared memory layouts of CUTLASS's tensor-core GEMM (A. Kerr et al., 2017); PTX ISA, "ldmatrix".

#include <cuda_bf16.h>

constexpr int BK = 64;           // depth of a step
constexpr int WM = 64, WN = 32;  // outputs of a warp
constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
typedef unsigned short Bits;  // of a bf16, which this kernel only moves

// sum += a * b: 16 x 8 outputs over a depth of 16. A comment in mma_plain.cu lists which thread holds which element.
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Load four 8 x 8 matrices. Threads 8 i to 8 i + 7 pass the addresses of the rows of matrix i; to[i] receives this
// thread's elements of matrix i.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const Bits* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const Bits* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// Return the position of chunk `at / 8` of a row in a tile with `width` elements per row.
template <int width>
__device__ __forceinline__ int swizzled(int row, int at) {
    return row * width + (at / 8 ^ row % 8) * 8;
}

__device__ __forceinline__ uint4 load8(const __nv_bfloat16* from, bool inside) {
    return inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0u, 0u, 0u, 0u);
}

// a [m][k], b [k][n], out [m][n], all aligned to 16 bytes
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_mma_ldmatrix(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                        __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    __shared__ __align__(128) Bits a_tile[BM * BK], b_tile[BK * BN];
    const int tiles_m = (m + BM - 1) / BM;  // neighbouring blocks share the columns of b
    const int row0 = (int)(blockIdx.x % tiles_m) * BM, col0 = (int)(blockIdx.x / tiles_m) * BN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    float sum[WM / 16][WN / 8][4] = {};

    for (int k0 = 0; k0 < k; k0 += BK) {
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
            const int row = i / (BK / 8), at = i % (BK / 8) * 8;
            const __nv_bfloat16* from = a + (size_t)(row0 + row) * k + k0 + at;
            *reinterpret_cast<uint4*>(a_tile + swizzled<BK>(row, at)) = load8(from, row0 + row < m && k0 + at < k);
        }
#pragma unroll
        for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
            const int row = i / (BN / 8), at = i % (BN / 8) * 8;
            const __nv_bfloat16* from = b + (size_t)(k0 + row) * n + col0 + at;
            *reinterpret_cast<uint4*>(b_tile + swizzled<BN>(row, at)) = load8(from, k0 + row < k && col0 + at < n);
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            // The matrices of a fragment: the upper eight rows, the lower ones, then both again eight columns on.
            unsigned a_part[WM / 16][4], b_part[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
                load_matrices(a_part[i], a_tile + swizzled<BK>(warp_row + i * 16 + lane % 16, kk + lane / 16 * 8));
#pragma unroll
            for (int j = 0; j < WN / 16; ++j)
                load_transposed(b_part[j], b_tile + swizzled<BN>(kk + lane % 16, warp_col + j * 16 + lane / 16 * 8));
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
#pragma unroll
                for (int j = 0; j < WN / 8; ++j)
                    multiply(sum[i][j], a_part[i], b_part[j / 2][j % 2 * 2], b_part[j / 2][j % 2 * 2 + 1]);
        }
        __syncthreads();  // before the next step overwrites the tiles
    }

    const int group = lane / 4, pair = lane % 4 * 2;
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
