// /// opbench
// operator = "sum"
// workspace = { partial = "cdiv(n, 1024)" }
// launch = [
//   { kernel = "reduce<256, 4>", grid = ["cdiv(n, 1024)"], block = ["256"], args = ["x", "partial", "n"] },
//   { kernel = "reduce<256, 4>", grid = ["1"], block = ["256"], args = ["partial", "out", "cdiv(n, 1024)"] },
// ]
// requires = ["n <= 5000"]
// ///
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/warp/warp_merge_sort.cuh>
namespace cg = cooperative_groups;
struct Less {
    __device__ bool operator()(int a, int b) const { return a < b; }
};
template <int THREADS, int ITEMS>
__global__ void reduce(const float* in, float* out, int n) {
    using Sort = cub::WarpMergeSort<int, ITEMS, 16, short>;
    using Rank = cub::BlockRadixRank<THREADS, 4, false>;
    using Down = cub::BlockRadixRank<THREADS, 4, true>;
    using Shuffle = cub::BlockShuffle<int, THREADS>;
    __shared__ union {
        typename Sort::TempStorage sort[THREADS / 16];
        typename Rank::TempStorage rank;
        typename Down::TempStorage down;
        typename Shuffle::TempStorage shuffle;
    } temp;
    __shared__ cg::block_tile_memory<THREADS> between;
    __shared__ unsigned placed[THREADS * ITEMS];
    __shared__ float sums[THREADS / 128];
    auto block = cg::this_thread_block(between);
    auto tile = cg::tiled_partition<128>(block);
    const int me = threadIdx.x, part = me % 16;
    bool good = true;
    int numbers[ITEMS];
    short values[ITEMS];
    for (int i = 0; i < ITEMS; ++i) numbers[i] = (part * ITEMS + i) * 37 % (16 * ITEMS), values[i] = -numbers[i];
    Sort(temp.sort[me / 16]).Sort(numbers, values, Less());
    for (int i = 0; i < ITEMS; ++i) good = good && numbers[i] == part * ITEMS + i && values[i] == -numbers[i];
    Sort(temp.sort[me / 16]).Sort(numbers, values, Less(), 3 * ITEMS, 99);
    for (int i = 0; i < ITEMS; ++i) good = good && numbers[i] == (part < 3 ? part * ITEMS + i : 99);
    __syncthreads();
    unsigned keys[ITEMS];
    int ranks[ITEMS], before[Rank::BINS_TRACKED_PER_THREAD];
    for (int i = 0; i < ITEMS; ++i) keys[i] = (me * ITEMS + i) * 37u;
    Rank(temp.rank).RankKeys(keys, ranks, cub::BFEDigitExtractor<unsigned>(2, 4), before);
    if (me < 16) good = good && before[0] == me * THREADS * ITEMS / 16;
    for (int i = 0; i < ITEMS; ++i) placed[ranks[i]] = keys[i];
    __syncthreads();
    for (int i = me; i + 1 < THREADS * ITEMS; i += THREADS) {
        const unsigned a = placed[i] >> 2 & 15, b = placed[i + 1] >> 2 & 15;
        good = good && (a < b || (a == b && placed[i] < placed[i + 1]));  // equals stay in order
    }
    __syncthreads();
    Down(temp.down).RankKeys(keys, ranks, cub::BFEDigitExtractor<unsigned>(2, 4));
    for (int i = 0; i < ITEMS; ++i) placed[ranks[i]] = keys[i];
    __syncthreads();
    for (int i = me; i + 1 < THREADS * ITEMS; i += THREADS) {
        good = good && (placed[i] >> 2 & 15) >= (placed[i + 1] >> 2 & 15);
    }
    int other = -1, round = -1, last = -1, shifted[ITEMS];
    Shuffle(temp.shuffle).Offset(me, other, -3);
    __syncthreads();
    Shuffle(temp.shuffle).Rotate(me, round, 5);
    __syncthreads();
    for (int i = 0; i < ITEMS; ++i) numbers[i] = me * ITEMS + i, shifted[i] = -1;
    Shuffle(temp.shuffle).Up(numbers, shifted, last);
    good = good && other == (me < 3 ? -1 : me - 3) && round == (me + 5) % THREADS && last == THREADS * ITEMS - 1;
    for (int i = 0; i < ITEMS; ++i) good = good && shifted[i] == numbers[i] - 1;
    __syncthreads();
    shifted[ITEMS - 1] = THREADS * ITEMS;
    Shuffle(temp.shuffle).Down(numbers, shifted);
    for (int i = 0; i < ITEMS; ++i) good = good && shifted[i] == numbers[i] + 1;
    float own = 0.0f;
    for (int i = 0; i < ITEMS; ++i) {
        const int at = blockIdx.x * THREADS * ITEMS + i * THREADS + me;
        own += at < n ? in[at] : 0.0f;
    }
    const float sum = cg::reduce(tile, own, cg::plus<float>());
    good = good && tile.size() == 128 && tile.shfl(me, 70) == me / 128 * 128 + 70 && tile.any(tile.thread_rank() == 77);
    const bool all = tile.all(good), others = tile.all(tile.thread_rank() != 77);
    if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = all && !others ? sum : INFINITY;
    __syncthreads();
    if (me == 0) out[blockIdx.x] = sums[0] + sums[1];
}
