// /// opbench
// title     = "cp.async pipeline of STAGES stages: tiles are loaded during the multiplication; one barrier per step"
// builds_on = "mma_ldmatrix"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "bank_conflict_free",
//     "fewer_barriers", "double_buffer", "async_copy", "tensor_core",
// ]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["k % 8 == 0 and n % 8 == 0"]
// tune      = { BM = [128, 64], BN = [128, 64], STAGES = [3, 2] }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "matmul_mma_cp_async"
// grid   = ["cdiv(m, BM) * cdiv(n, BN)"]
// block  = ["BM // 64 * (BN // 32) * 32"]
// shared = "STAGES * (BM + BN) * 128"
// ///
//
// cp.async copies 16 bytes from global to shared memory without a register in between, and the thread continues at
// once. With 0 source bytes it writes zeros, which fills tiles beyond the edges of the matrices. The copies of a step
// are one group. While a step is multiplied, the copies of the next STAGES - 1 steps are in flight, which hides the
// latency of HBM and L2. One barrier per step is enough: after the barrier, the copies of all threads for this step
// have arrived, and no thread still reads the stage of the previous step, which is filled next. Limits: the tensor
// cores wait while the first fragments of a step are loaded; mma.sync itself reaches some 62 % of Hopper's tensor
// cores; mma.cu improves on this variant. After CUTLASS 2's multistage kernels for Ampere.

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

// Copy 16 bytes to shared memory; or zeros if they are outside of the matrix, and then `from` is not read.
__device__ __forceinline__ void copy8(Bits* to, const __nv_bfloat16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all of this thread's groups but the last `pending` have arrived.
template <int pending>
__device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

// a [m][k], b [k][n], out [m][n], all aligned to 16 bytes
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_mma_cp_async(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                        __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(128) Bits stages[];  // STAGES of a tile of a and a tile of b
    const int tiles_m = (m + BM - 1) / BM;           // neighbouring blocks share the columns of b
    const int row0 = (int)(blockIdx.x % tiles_m) * BM, col0 = (int)(blockIdx.x / tiles_m) * BN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / WARPS_N * WM, warp_col = warp % WARPS_N * WN;
    float sum[WM / 16][WN / 8][4] = {};

    const int steps = (k + BK - 1) / BK;
    const auto fetch = [&](int step) {
        Bits *const a_tile = stages + step % STAGES * (BM * BK + BK * BN), *const b_tile = a_tile + BM * BK;
        const int k0 = step * BK;
#pragma unroll
        for (int i = threadIdx.x; i < BM * BK / 8; i += THREADS) {
            const int row = i / (BK / 8), at = i % (BK / 8) * 8;
            const bool inside = row0 + row < m && k0 + at < k;
            copy8(a_tile + swizzled<BK>(row, at), inside ? a + (size_t)(row0 + row) * k + k0 + at : a, inside);
        }
#pragma unroll
        for (int i = threadIdx.x; i < BK * BN / 8; i += THREADS) {
            const int row = i / (BN / 8), at = i % (BN / 8) * 8;
            const bool inside = k0 + row < k && col0 + at < n;
            copy8(b_tile + swizzled<BN>(row, at), inside ? b + (size_t)(k0 + row) * n + col0 + at : b, inside);
        }
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(step);
        end_group();  // a group may be empty, so that their number says how far the copies are
    }
    for (int step = 0; step < steps; ++step) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
        end_group();
        const Bits *const a_tile = stages + step % STAGES * (BM * BK + BK * BN), *const b_tile = a_tile + BM * BK;
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
