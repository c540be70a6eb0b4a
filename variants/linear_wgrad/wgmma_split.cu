// /// opbench
// [variant.wgmma_split]
// title     = "wgmma_bf16, where several blocks split the batch of each tile that fills no whole wave"
// builds_on = "wgmma_bf16"
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent", "split_k", "overlapped_launch",
// ]
// product   = "bf16"
// tile      = { split = "SPLIT" }
// supports  = { dtype = ["bf16"], bias = ["no", "yes"] }
// requires  = ["n % 8 == 0 and k % 8 == 0", "n * k < 2 ** 31"]
// compute_capability = "9.0a"
// tune      = { SPLIT = [11, 7, 4, 6] }
//
// [define]
// BIAS   = "bias == 'yes'"
// TILES  = "cdiv(n, 128) * cdiv(k, 128)"
// BLOCKS = "132"
// LEFT   = "TILES % BLOCKS"
// PARTS  = "max(min(SPLIT, cdiv(m, 256)), 1)"
// STAGES = "7"
// GROUP  = "8"
//
// [workspace]
// parts      = "max(LEFT * PARTS, 1) * 16384"
// bias_parts = "max(LEFT * PARTS, 1) * 128"
//
// [tensor_maps]
// map_dout = { tensor = "dout", box = [64, 64] }
// map_x    = { tensor = "x", box = [64, 64] }
//
// [[launch]]
// kernel = "linear_wgrad_wgmma_split"
// grid   = ["min(BLOCKS, TILES - LEFT + LEFT * PARTS)"]
// block  = [384]
// shared = "STAGES * (32768 + 16) + 1024"
// args   = ["map_dout", "map_x", "parts", "bias_parts", "dweight", "dbias?", "m", "n", "k"]
//
// [[launch]]
// kernel = "linear_wgrad_add_parts"
// grid   = ["max(LEFT, 1) * 16"]
// block  = [256]
// args   = ["parts", "bias_parts", "dweight", "dbias?", "n", "k"]
// programmatic = true
// ///
//
// In training, a layer of a transformer has few weights and a deep batch: 3072 x 768 weights are 144 tiles, of which
// the last 12 take as long as the other 132 together; 768 x 768 are 36 tiles for all multiprocessors. Here PARTS blocks
// share each tile that does not belong to a full wave, and a second kernel adds their sums in the order of the batch.
// Blocks that run at the same time process the same part of the batch, so L2 serves most of their reads. (With
// Stream-K, each block is at another position of the batch, and DRAM serves all reads: 211 us for 3072 x 768 weights on
// an H100; wgmma_bf16 takes 200 us, this variant 141 us.) The number of blocks is that of an H100 on every GPU, so the
// bits of the result are the same. With 108 tiles or with thousands, wgmma_bf16 is faster: its last wave is then nearly
// full. Limit: partial sums are written and read, and the last wave reads from DRAM.

#include <opbench/overlap.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

// piece: bytes of 64 rows x 64 columns
constexpr int piece = 64 * 128, ones_bytes = 1024, tile_sums = 128 * 128, whole = TILES - LEFT;
typedef Ring<STAGES, 4 * piece> Stages;
typedef Tiles<128, 128, GROUP> TileScheduler;

// The steps of a whole tile, or of one part of a tile that is shared. Parts with the same number have consecutive
// indices.
struct Unit {
    TilePlace tile;
    int first, steps, part;  // part: its index in the workspace, or -1 for a whole tile
    __device__ __forceinline__ Unit(const TileScheduler& scheduler, int index, int all)
        : tile(scheduler[index < whole ? index : whole + (index - whole) % max(LEFT, 1)]), first(0), steps(all),
          part(-1) {
        if (index < whole) return;
        part = index - whole;
        const int number = part / max(LEFT, 1);
        first = all * number / PARTS, steps = all * (number + 1) / PARTS - first;
    }
};
template <class Work>
__device__ __forceinline__ void for_each_unit(const TileScheduler& scheduler, int all, const Work& work) {
    for (int index = blockIdx.x; index < whole + LEFT * PARTS; index += gridDim.x) work(Unit(scheduler, index, all));
}

// x [m][k], dout [m][n], dweight [n][k], dbias [n], parts [PARTS][LEFT][128][128], bias_parts [PARTS][LEFT][128]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    linear_wgrad_wgmma_split(const __grid_constant__ TensorMap map_dout, const __grid_constant__ TensorMap map_x,
                             float* __restrict__ parts, float* __restrict__ bias_parts, float* __restrict__ dweight,
#if BIAS
                             float* __restrict__ dbias,
#endif
                             int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), ones = memory + Stages::bytes;
    Stages ring(memory, ones + ones_bytes);
    const TileScheduler scheduler(n, k);
    const int all = (m + 63) / 64;
    if (threadIdx.x == 0) ring.init();
    if (BIAS && threadIdx.x < ones_bytes / 4) {
        reinterpret_cast<unsigned*>(shared + Stages::bytes)[threadIdx.x] = 0x3f803f80u;
        fence_async();
    }
    __syncthreads();
    let_next_launch_start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        for_each_unit(scheduler, all, [&](const Unit& unit) {
            ring.fill(unit.steps, [&](int step, unsigned a, unsigned full) {
                for (int i = 0; i < 2; ++i) {
                    load(a + i * piece, &map_dout, full, unit.tile.row + i * 64, (unit.first + step) * 64);
                    load(a + (2 + i) * piece, &map_x, full, unit.tile.column + i * 64, (unit.first + step) * 64);
                }
            });
        });
    } else {
        registers_up<consumer_registers>();
        const int group = threadIdx.x / 128 - 1, row = group * 64 + threadIdx.x / 32 % 4 * 16, lane = threadIdx.x % 32;
        float total[64], bias_total[4];  // bias_total: the product with ones has 8 equal columns
        const auto multiply_unit = [&](const Unit& unit, auto with_ones) {
            constexpr bool multiplies_ones = decltype(with_ones)::value;
            drain_by_depth<Format::bf16, multiplies_ones>(ring, unit.steps, group, ones, total, bias_total);
            if (unit.part < 0)
                store_pairs(total, dweight, unit.tile.row + row, unit.tile.column, n, k);
            else
                store_pairs(total, parts + (size_t)unit.part * tile_sums, row, 0, 128, 128);
#if BIAS
            if (!multiplies_ones || lane % 4 != 0) return;
            for (int half = 0; half < 2; ++half) {
                const int at = row + lane / 4 + half * 8;
                if (unit.part >= 0)
                    bias_parts[unit.part * 128 + at] = bias_total[half * 2];
                else if (unit.tile.row + at < n)
                    dbias[unit.tile.row + at] = bias_total[half * 2];
            }
#endif
        };
        for_each_unit(scheduler, all, [&](const Unit& unit) {
            if (BIAS && unit.tile.column == 0)
                multiply_unit(unit, Choice<BIAS>());
            else
                multiply_unit(unit, Choice<false>());
        });
    }
}

// 16 blocks add the partial sums of a tile; each thread adds four of them.
extern "C" __global__ void __launch_bounds__(256)
    linear_wgrad_add_parts(const float* __restrict__ parts, const float* __restrict__ bias_parts,
                           float* __restrict__ dweight,
#if BIAS
                           float* __restrict__ dbias,
#endif
                           int n, int k) {
    if (LEFT == 0) return;
    const int left = blockIdx.x / 16, at = (blockIdx.x % 16 * 256 + threadIdx.x) * 4;
    const TilePlace tile = TileScheduler(n, k)[whole + left];
    const int row = tile.row + at / 128, column = tile.column + at % 128;
    wait_for_launches_before();
#if BIAS
    const int bias_row = tile.row + threadIdx.x;
    if (tile.column == 0 && blockIdx.x % 16 == 0 && threadIdx.x < 128 && bias_row < n) {
        float sum = 0.0f;
        for (int part = 0; part < PARTS; ++part) sum += bias_parts[(part * LEFT + left) * 128 + threadIdx.x];
        dbias[bias_row] = sum;
    }
#endif
    if (row >= n || column >= k) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const float4 x = *reinterpret_cast<const float4*>(parts + (size_t)(part * LEFT + left) * tile_sums + at);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    *reinterpret_cast<float4*>(dweight + (size_t)row * k + column) = sum;
}
