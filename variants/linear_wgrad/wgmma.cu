// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "persistent",
// ]
// supports  = { bias = ["no", "yes"] }
// compute_capability = "9.0a"
//
// [define]
// PLANES  = "2 if PRODUCT == 'f16x3' else 1"
// STAGES  = "4 // PLANES"
// BIAS    = "bias == 'yes'"
// GROUP   = "8"
// ROUNDED = "PRODUCT != 'bf16'"
// N_PITCH = "cdiv(n, 8) * 8"
// K_PITCH = "cdiv(k, 8) * 8"
//
// [tensor_maps]
// map_dweight = { tensor = "dweight", box = [32, 16] }
//
// [tensor_maps.map_dout]
// tensor  = "dout_planes"
// type    = "f16"
// dims    = ["n", "m", "PLANES"]
// strides = ["2 * N_PITCH", "2 * N_PITCH * m"]
// box     = [64, 64, "PLANES"]
//
// [tensor_maps.map_x]
// tensor  = "x_planes"
// type    = "f16"
// dims    = ["k", "m", "PLANES"]
// strides = ["2 * K_PITCH", "2 * K_PITCH * m"]
// box     = [64, 64, "PLANES"]
//
// [[launch]]
// zero = "largest"
//
// [[launch]]
// kernel = "linear_wgrad_find"
// grid   = ["cdiv(max(n, k), 1024)", "min(cdiv(m, 4), 64)", 2]
// block  = [256]
// args   = ["dout", "x", "largest", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_wgrad_split"
// grid   = ["cdiv(max(n, k), 1024)", "min(cdiv(m, 4), 64)", 2]
// block  = [256]
// args   = ["dout", "x", "largest", "dout_planes", "x_planes", "dout_exponents", "x_exponents", "m", "n", "k"]
// programmatic = true
//
// [[launch]]
// kernel = "linear_wgrad_wgmma"
// grid   = ["min(sm_count, cdiv(n, 128) * cdiv(k, 128))"]
// block  = [384]
// shared = "STAGES * (32768 * PLANES + 16) + 65536 + 1024"
// args   = ["map_dout", "map_x", "map_dweight", "dout_exponents", "x_exponents", "dout", "dbias?", "m", "n", "k"]
// programmatic = true
//
// [variant.wgmma_bf16]
// title     = "bf16 wgmma and TMA in persistent blocks; wgmma transposes both operands"
// builds_on = "mma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["n % 8 == 0 and k % 8 == 0"]
// tensor_maps.map_dout = { tensor = "dout", dims = ["n", "m", 1], box = [64, 64, 1] }
// tensor_maps.map_x    = { tensor = "x", dims = ["k", "m", 1], box = [64, 64, 1] }
//
// [[variant.wgmma_bf16.launch]]
// kernel = "linear_wgrad_wgmma"
// grid   = ["min(sm_count, cdiv(n, 128) * cdiv(k, 128))"]
// block  = [384]
// shared = "STAGES * (32768 * PLANES + 16) + 65536 + 1024"
// args   = ["map_dout", "map_x", "map_dweight", "dout", "dbias?", "m", "n", "k"]
//
// [variant.wgmma_f16]
// title     = "TF32 accuracy by f16 wgmma at twice the rate: separate kernels round and scale each column"
// builds_on = "mma_tf32"
// mechanism = ["vectorised_access", "overlapped_launch", "converted_ahead"]
// product   = "f16"
// precision = "tf32"
// requires  = ["n % 4 == 0 and k % 4 == 0"]
//
// [variant.wgmma_f16.workspace]
// dout_planes    = "m * N_PITCH // 2"
// x_planes       = "m * K_PITCH // 2"
// dout_exponents = "n"
// x_exponents    = "k"
// largest        = "n + k"
//
// [variant.wgmma_planes]
// title     = "wgmma with float32 accuracy: operands split into two f16 parts, scaled per column, three products"
// builds_on = "wgmma_f16"
// mechanism = ["vectorised_access", "operand_split", "overlapped_launch", "converted_ahead"]
// product   = "f16x3"
// requires  = ["n % 4 == 0 and k % 4 == 0"]
//
// [variant.wgmma_planes.workspace]
// dout_planes    = "m * N_PITCH"
// x_planes       = "m * K_PITCH"
// dout_exponents = "n"
// x_exponents    = "k"
// largest        = "n + k"
// ///
//
// The depth is the batch, and both operands are stored with the batch as rows. wgmma takes 16-bit operands in this
// order, 64 columns of 64 rows per copy. With the batches of training, a tile of 128 x 128 has few products but 64 KB
// of floats to write, which DRAM does not take faster. So each warp stores its sums through shared memory by TMA while
// the persistent blocks multiply the next tile. Floats are converted to one f16 plane or to two in a pass over x and
// dout, which are small compared with the weights. The tensor core truncates as it adds, so its sums are added in float
// every 512 rows; with two planes, the sums of the high parts every 64 rows. The gradient of the bias is a product with
// ones: in bf16 by wgmma, together with the tiles of the first columns. For floats, the warps that do not copy compute
// it from dout itself, one column per lane. Limit: writing dweight; with large batches the tensor cores. Idea:
// conv2d_wgrad/nhwc_wgmma_split and matmul/wgmma_planes.

#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>
using namespace opbench;

// piece: bytes of one plane of 64 rows x 64 columns; part: bytes of all its planes
constexpr int piece = 64 * 128, part = PLANES * piece;
typedef Ring<STAGES, 4 * part> Stages;
typedef Tiles<128, 128, GROUP> TileScheduler;
#if ROUNDED
constexpr Format operand = Format::f16;
typedef float T;
#else
constexpr Format operand = Format::bf16;
typedef unsigned short T;
#endif
constexpr bool multiply_ones = BIAS && !ROUNDED;
constexpr int slab_bytes = 65536, ones_bytes = 1024;  // 8 columns of 64 ones, in any order

// Store a warp's sums of 16 rows and 128 columns: it writes them to its four parts of shared memory, each 16 x 32
// floats, and TMA stores those.
__device__ __forceinline__ void store_sums(const float (&d)[64], unsigned char* slabs, const TensorMap* map, int row,
                                           int column, int rows, int columns) {
    const unsigned lane = threadIdx.x % 32, line = lane / 4;
    if (lane == 0) wait_for_reads<0>();  // the stores of the previous tile have read shared memory
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 32; ++i) {  // pairs of sums: i even in row `line`, i odd in row `line` + 8
        const unsigned chunk = (i / 2 % 4 * 2 + lane % 4 / 2) ^ line;
        store_two(reinterpret_cast<float*>(slabs + i / 8 * 2048 + (line + i % 2 * 8) * 128 + chunk * 16) + lane % 2 * 2,
                  d[i * 2], d[i * 2 + 1]);
    }
    fence_async();
    __syncwarp();
    if (lane > 0 || row >= rows) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (column + i * 32 < columns) store(map, shared_address(slabs) + i * 2048, column + i * 32, row);
    commit_stores();
}

// x [m][k], dout [m][n], dweight [n][k], dbias [n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_wgrad_wgmma(const __grid_constant__ TensorMap map_dout, const __grid_constant__ TensorMap map_x,
                       const __grid_constant__ TensorMap map_dweight,
#if ROUNDED
                       const int* __restrict__ dout_exponents, const int* __restrict__ x_exponents,
#endif
                       const T* __restrict__ dout,
#if BIAS
                       float* __restrict__ dbias,
#endif
                       int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    const unsigned ones = memory + Stages::bytes + slab_bytes;
    Stages ring(memory, ones + ones_bytes);
    const TileScheduler scheduler(n, k);
    const int steps = (m + 63) / 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) ring.init();
    if (multiply_ones && threadIdx.x < ones_bytes / 4) {
        reinterpret_cast<unsigned*>(shared + Stages::bytes + slab_bytes)[threadIdx.x] = 0x3f803f80u;
        fence_async();
    }
    __syncthreads();
    wait_for_launches_before();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                ring.fill(steps, [&](int step, unsigned a, unsigned full) {
                    for (int i = 0; i < 2; ++i) {
                        load(a + i * part, &map_dout, full, tile.row + i * 64, step * 64, 0);
                        load(a + (2 + i) * part, &map_x, full, tile.column + i * 64, step * 64, 0);
                    }
                });
            });
#if BIAS && ROUNDED
        if (warp > 0)
            for (int at = (blockIdx.x * 3 + warp - 1) * 32 + lane; at < n; at += gridDim.x * 96) {
                float sum = 0.0f;
#pragma unroll 8
                for (int row = 0; row < m; ++row) sum += widen(dout[(size_t)row * n + at]);
                dbias[at] = sum;
            }
#endif
    } else {
        registers_up<consumer_registers>();
        const int group = warp / 4 - 1;
        float total[64], bias_total[4];  // bias_total: the product with ones has 8 equal columns
        const auto multiply_tile = [&](TilePlace tile, auto with_ones) {
            constexpr bool multiplies_ones = decltype(with_ones)::value;
#if PLANES == 2
            float sum[64], small[64];
#pragma unroll
            for (int i = 0; i < 64; ++i) total[i] = 0.0f;
            const auto multiply = [&](int step, unsigned stage) {
                const unsigned long long a = descriptor(stage + group * part), low = piece / 16;
                const unsigned long long b = descriptor(stage + 2 * part, 1024, part);
#pragma unroll
                for (int i = 0; i < 4 * 128; i += 128)  // 16 rows per step
                    wgmma<operand, true, true>(sum, a + i, b + i, i > 0);
                wgmma_commit();
#pragma unroll
                for (int i = 0; i < 4 * 128; i += 128) {
                    wgmma<operand, true, true>(small, a + low + i, b + i, step > 0 || i > 0);
                    wgmma<operand, true, true>(small, a + i, b + low + i, 1);
                }
            };
            ring.drain(steps, multiply, [&] {
#pragma unroll
                for (int i = 0; i < 64; ++i) total[i] += sum[i];
            });
#pragma unroll
            for (int i = 0; i < 64; ++i) total[i] += small[i];
#else
            drain_by_depth<operand, multiplies_ones>(ring, steps, group, ones, total, bias_total);
#endif
            const int row = tile.row + group * 64 + warp % 4 * 16;
#if ROUNDED
            scale_sums(total, dout_exponents, x_exponents, row, tile.column, n, k);
#endif
#if BIAS && !ROUNDED
            const int bias_row = row + lane / 4;
            if (multiplies_ones && lane % 4 == 0) {
                if (bias_row < n) dbias[bias_row] = bias_total[0];
                if (bias_row + 8 < n) dbias[bias_row + 8] = bias_total[2];
            }
#endif
            store_sums(total, shared + Stages::bytes + (warp - 4) * 8192, &map_dweight, row, tile.column, n, k);
        };
        scheduler.for_each_tile([&](TilePlace tile) {
            if (multiply_ones && tile.column == 0)
                multiply_tile(tile, Choice<multiply_ones>());
            else
                multiply_tile(tile, Choice<false>());
        });
        if (lane == 0) wait_for_stores<0>();
    }
}

#if ROUNDED
// Find the largest magnitude of each column of dout; the blocks of z = 1 find that of x.
extern "C" __global__ void __launch_bounds__(256)
    linear_wgrad_find(const float* __restrict__ dout, const float* __restrict__ x, unsigned* __restrict__ largest,
                      int m, int n, int k) {
    let_next_launch_start();
    if (blockIdx.z == 0)
        find_columns(dout, largest, m, n);
    else
        find_columns(x, largest + n, m, k);
}
extern "C" __global__ void __launch_bounds__(256)
    linear_wgrad_split(const float* __restrict__ dout, const float* __restrict__ x,
                       const unsigned* __restrict__ largest, __half* __restrict__ dout_planes,
                       __half* __restrict__ x_planes, int* __restrict__ dout_exponents, int* __restrict__ x_exponents,
                       int m, int n, int k) {
    let_next_launch_start();
    wait_for_launches_before();
    if (blockIdx.z == 0)
        split_columns<PLANES>(dout, largest, dout_planes, dout_exponents, m, n, N_PITCH);
    else
        split_columns<PLANES>(x, largest + n, x_planes, x_exponents, m, k, K_PITCH);
}
#endif
