// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised", "persistent",
// ]
// tile      = { m = 128, n = "BN", k = 64 }
// supports  = { a_order = ["row", "col"], b_order = ["row", "col"] }
// requires  = ["batch * cdiv(m, 128) * cdiv(n, BN) < 2 ** 31"]
// compute_capability = "9.0a"
//
// [define]
// A_COLUMNS = "a_order == 'col'"
// B_COLUMNS = "b_order == 'col'"
// PLANES    = "2 if PRODUCT == 'f16x3' else 1"
// STAGES    = "196608 // ((128 + BN) * 128 * PLANES)"
// A_INNER   = "m if A_COLUMNS else k"
// A_LINES   = "k if A_COLUMNS else m"
// B_INNER   = "k if B_COLUMNS else n"
// B_LINES   = "n if B_COLUMNS else k"
// A_PITCH   = "cdiv(A_INNER, 8) * 8"
// B_PITCH   = "cdiv(B_INNER, 8) * 8"
//
// [variant.wgmma_bf16]
// title     = "wgmma and TMA in persistent blocks, which process the tiles of all matrices of the batch"
// builds_on = "mma_bf16"
// mechanism = ["bank_conflict_free"]
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["A_INNER % 8 == 0 and B_INNER % 8 == 0 and n % 8 == 0"]
// tune      = { BN = [256, 128], GROUP = [8, 16] }
//
// [variant.wgmma_bf16.tensor_maps]
// map_out = { tensor = "out", dims = ["n", "m", "batch", 1], box = [64, 16, 1, 1] }
//
// [variant.wgmma_bf16.tensor_maps.map_a]
// tensor = "a"
// dims   = ["A_INNER", "A_LINES", 1, "batch"]
// box    = [64, "64 if A_COLUMNS else 128", 1, 1]
//
// [variant.wgmma_bf16.tensor_maps.map_b]
// tensor = "b"
// dims   = ["B_INNER", "B_LINES", 1, "batch"]
// box    = [64, "BN if B_COLUMNS else 64", 1, 1]
//
// [[variant.wgmma_bf16.launch]]
// kernel = "batched_matmul_wgmma"
// grid   = ["min(sm_count, batch * cdiv(m, 128) * cdiv(n, BN))"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 + 16) + 32768"
// args   = ["map_a", "map_b", "map_out", "batch", "m", "n", "k"]
//
// [variant.wgmma_planes]
// title     = "wgmma with float32 accuracy: operands split into two scaled f16 parts, three products"
// builds_on = "wgmma_bf16"
// mechanism = ["vectorised_access", "operand_split", "converted_ahead"]
// product   = "f16x3"
// requires  = [
//     "A_INNER % 4 == 0 and B_INNER % 4 == 0 and n % 2 == 0",
//     "batch <= 65535 and batch * max(m, n) < 2 ** 31",
// ]
// tune      = { BN = [128], GROUP = [8, 16] }
//
// [variant.wgmma_planes.workspace]
// a_planes    = "batch * A_LINES * A_PITCH"
// b_planes    = "batch * B_LINES * B_PITCH"
// a_exponents = "batch * m"
// b_exponents = "batch * n"
// a_largest   = "batch * m if A_COLUMNS else 1"
// b_largest   = "1 if B_COLUMNS else batch * n"
//
// [variant.wgmma_planes.tensor_maps.map_a]
// tensor  = "a_planes"
// type    = "f16"
// dims    = ["A_INNER", "A_LINES", 2, "batch"]
// strides = ["2 * A_PITCH", "2 * A_PITCH * A_LINES", "4 * A_PITCH * A_LINES"]
// box     = [64, "64 if A_COLUMNS else 128", 2, 1]
//
// [variant.wgmma_planes.tensor_maps.map_b]
// tensor  = "b_planes"
// type    = "f16"
// dims    = ["B_INNER", "B_LINES", 2, "batch"]
// strides = ["2 * B_PITCH", "2 * B_PITCH * B_LINES", "4 * B_PITCH * B_LINES"]
// box     = [64, "128 if B_COLUMNS else 64", 2, 1]
//
// [[variant.wgmma_planes.launch]]
// zero = "a_largest"
//
// [[variant.wgmma_planes.launch]]
// zero = "b_largest"
//
// [[variant.wgmma_planes.launch]]
// kernel = "find_columns_of_batch"
// grid   = ["cdiv(max(m, n), 1024)", "min(cdiv(k, 16), 64)", "batch"]
// block  = [256]
// args   = ["a", "b", "a_largest", "b_largest", "m", "n", "k"]
//
// [[variant.wgmma_planes.launch]]
// kernel = "split_a"
// grid   = ["cdiv(m, 1024) if A_COLUMNS else m", "min(cdiv(k, 16), 64) if A_COLUMNS else 1", "batch"]
// block  = [256]
// args   = ["a", "a_largest", "a_planes", "a_exponents", "m", "k"]
//
// [[variant.wgmma_planes.launch]]
// kernel = "split_b"
// grid   = ["n if B_COLUMNS else cdiv(n, 1024)", "1 if B_COLUMNS else min(cdiv(k, 16), 64)", "batch"]
// block  = [256]
// args   = ["b", "b_largest", "b_planes", "b_exponents", "n", "k"]
//
// [[variant.wgmma_planes.launch]]
// kernel = "batched_matmul_wgmma"
// grid   = ["min(sm_count, batch * cdiv(m, 128) * cdiv(n, BN))"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 * PLANES + 16)"
// args   = ["map_a", "map_b", "a_exponents", "b_exponents", "out", "batch", "m", "n", "k"]
// ///
//
// The index of the matrix is one more coordinate of the TMA copies, which therefore stop at the edges of each matrix.
// The number of a tile also contains the index of its matrix. Persistent blocks loop over the tiles of all matrices, so
// that small matrices leave no multiprocessors idle. Neighbouring blocks have tiles of the same matrix, so its operands
// stay in L2. wgmma takes 16-bit operands in either order. Each warp writes bf16 tiles to its own slabs, and TMA stores
// them. With planes, a first pass writes each float as two f16 numbers. Because the tensor core truncates when it adds,
// the sums of products of high parts start from zero every 64 k and are added in float, while the small products of the
// same stage run. Limit: the tensor cores; for small k writing out; with planes also the passes, which read and write
// both operands once. After matmul/wgmma_persistent and matmul/wgmma_planes.

#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr bool by_m = A_COLUMNS != 0, by_n = B_COLUMNS == 0;
constexpr int piece = 64 * 128;  // bytes of 64 lines of 64 numbers
constexpr int a_plane = 2 * piece, b_plane = BN / 64 * piece;
typedef Ring<STAGES, PLANES*(a_plane + b_plane)> Stages;
typedef Tiles<128, BN, GROUP> TileScheduler;
#if PLANES == 2
constexpr Format operand = Format::f16;
#else
constexpr Format operand = Format::bf16;
#endif

// Call work(matrix, place) for each tile of this block, of all matrices.
template <class Work>
__device__ __forceinline__ void for_each_tile(const TileScheduler& scheduler, int batch, const Work& work) {
    const int tiles = scheduler.count();
    for (int index = scheduler.first; index < batch * tiles; index += scheduler.step)
        work(index / tiles, scheduler[index % tiles]);
}

// a [batch][m][k] or [batch][k][m] (A_COLUMNS), b [batch][k][n] or [batch][n][k] (B_COLUMNS), out [batch][m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    batched_matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
#if PLANES == 2
                         const int* __restrict__ a_exponents, const int* __restrict__ b_exponents,
                         float* __restrict__ out,
#else
                         const __grid_constant__ TensorMap map_out,
#endif
                         int batch, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + (PLANES == 1 ? EpilogueSmem<>::block_bytes : 0));
    const TileScheduler scheduler(m, n);
    const int steps = (k + 63) / 64;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        for_each_tile(scheduler, batch, [&](int matrix, TilePlace tile) {
            ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                const unsigned b = a + PLANES * a_plane;
                if constexpr (by_m) {  // pieces of 64 rows, each with all planes
                    for (int part = 0; part < 2; ++part)
                        load(a + part * PLANES * piece, &map_a, full, tile.row + part * 64, step * 64, 0, matrix);
                } else {
                    load(a, &map_a, full, step * 64, tile.row, 0, matrix);
                }
                if constexpr (by_n) {
                    for (int part = 0; part < BN / 64; ++part)
                        load(b + part * PLANES * piece, &map_b, full, tile.column + part * 64, step * 64, 0, matrix);
                } else {
                    load(b, &map_b, full, step * 64, tile.column, 0, matrix);
                }
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int warp = threadIdx.x / 32, group = warp / 4 - 1;
        // Descriptors count 16 bytes. 16 k are 32 bytes of a row, or 16 rows of 128 bytes.
        constexpr int a_step = by_m ? 128 : 2, b_step = by_n ? 128 : 2;
        constexpr int a_low = (by_m ? piece : a_plane) / 16, b_low = (by_n ? piece : b_plane) / 16;
        float sum[BN / 2];
#if PLANES == 2
        float total[BN / 2], small[BN / 2];
#else
        EpilogueSmem<> out_slabs(slabs);
#endif
        const auto multiply = [&](int step, unsigned stage) {
            const unsigned long long a = descriptor(stage + group * (by_m ? PLANES * piece : piece));
            const unsigned b_at = stage + PLANES * a_plane;
            const unsigned long long b = by_n ? descriptor(b_at, 1024, PLANES * piece) : descriptor(b_at);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                wgmma<operand, by_m, by_n>(sum, a + i * a_step, b + i * b_step, PLANES == 1 && step > 0 || i > 0);
#if PLANES == 2
            wgmma_commit();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                wgmma<operand, by_m, by_n>(small, a + a_low + i * a_step, b + i * b_step, step > 0 || i > 0);
                wgmma<operand, by_m, by_n>(small, a + i * a_step, b + b_low + i * b_step, 1);
            }
#endif
        };
        for_each_tile(scheduler, batch, [&](int matrix, TilePlace tile) {
            const int row = tile.row + group * 64 + warp % 4 * 16;
#if PLANES == 2
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) total[i] = 0.0f;
            ring.drain(steps, multiply, [&] {
#pragma unroll
                for (int i = 0; i < BN / 2; ++i) total[i] += sum[i];
            });
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) total[i] += small[i];
            scale_sums(total, a_exponents + matrix * m, b_exponents + matrix * n, row, tile.column, m, n);
            store_pairs(total, out + (size_t)matrix * m * n, row, tile.column, m, n);
#else
            ring.drain(steps, multiply);
            out_slabs.store_parts(sum, [&](unsigned slab, int at) {
                if (row < m && tile.column + at < n) store(&map_out, slab, tile.column + at, row, matrix, 0);
            });
#endif
        });
#if PLANES == 1
        out_slabs.finish();
#endif
    }
}

#if PLANES == 2
// Find the largest magnitude in each column of the operands that are stored [k][...].
extern "C" __global__ void __launch_bounds__(256)
    find_columns_of_batch(const float* __restrict__ a, const float* __restrict__ b, unsigned* __restrict__ a_largest,
                          unsigned* __restrict__ b_largest, int m, int n, int k) {
    const size_t matrix = blockIdx.z;
    if (by_m) find_columns(a + matrix * k * m, a_largest + matrix * m, k, m);
    if (by_m && by_n) __syncthreads();  // both use the same shared memory
    if (by_n) find_columns(b + matrix * k * n, b_largest + matrix * n, k, n);
}

// Write the planes of one matrix: `count` rows or columns of k numbers, stored [count][k], or [k][count] with by_depth.
template <bool by_depth>
__device__ __forceinline__ void split_operand(const float* __restrict__ in, const unsigned* largest, __half* planes,
                                              int* exponents, int count, int k, int pitch) {
    const size_t matrix = blockIdx.z;
    __half* const to = planes + 2 * matrix * (by_depth ? k : count) * pitch;
    if (by_depth) {
        split_columns(in + matrix * k * count, largest + matrix * count, to, exponents + matrix * count, k, count,
                      pitch);
    } else {
        split_rows(in + matrix * count * k, to, exponents + matrix * count, count, k, pitch);
    }
}
extern "C" __global__ void __launch_bounds__(256)
    split_a(const float* __restrict__ a, const unsigned* __restrict__ largest, __half* __restrict__ planes,
            int* __restrict__ exponents, int m, int k) {
    split_operand<by_m>(a, largest, planes, exponents, m, k, A_PITCH);
}
extern "C" __global__ void __launch_bounds__(256)
    split_b(const float* __restrict__ b, const unsigned* __restrict__ largest, __half* __restrict__ planes,
            int* __restrict__ exponents, int n, int k) {
    split_operand<by_n>(b, largest, planes, exponents, n, k, B_PITCH);
}
#endif
