// /// opbench
// title     = "multi-stage TMA pipeline; blocks get equal shares of the tokens of all sequences"
// builds_on = "split"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_passes", "register_tile", "shared_memory_tile",
//     "split_k", "sliced_k", "compile_time_sizes", "double_buffer", "tma", "warp_specialised", "persistent",
//     "overlapped_launch",
// ]
// tune      = { TILE = [16, 8] }
// supports.ragged = ["no", "yes"]
// supports.dtype  = ["f32", "bf16"]
// requires  = [
//     "depth * SIZE % 128 == 0 and depth <= 256", "WARPS <= 8", "STAGE <= 98304", "sequences <= 65535",
//     "sequences * keys < 2 ** 31", "pages * page_size < 2 ** 31",
// ]
// compute_capability = "9.0a"
//
// [define]
// BF16       = "dtype == 'bf16'"
// SIZE       = "2 if BF16 else 4"
// DEPTH      = "depth"
// PAGE_SIZE  = "page_size"
// GROUP      = "group"
// QUERIES    = "max(1, min(GROUP, 512 // DEPTH))"
// HEAD_PARTS = "cdiv(GROUP, QUERIES)"
// MOST_HEADS = "8 if HEAD_PARTS == 1 else 4 if HEAD_PARTS == 2 else 2 if HEAD_PARTS <= 4 else 1"
// KV_HEADS   = "MOST_HEADS if kv_heads % MOST_HEADS == 0 else LESS_HEADS"
// LESS_HEADS = "4 if MOST_HEADS > 4 and kv_heads % 4 == 0 else 2 if MOST_HEADS > 2 and kv_heads % 2 == 0 else 1"
// GROUPS     = "kv_heads // KV_HEADS"
// SLICES     = "max(1, 8 // (KV_HEADS * HEAD_PARTS))"
// WARPS      = "KV_HEADS * HEAD_PARTS * SLICES"
// TOKENS     = "TILE * SLICES"
// BOX        = "16 if TILE >= 16 and page_size % 16 == 0 else SMALL_BOX"
// SMALL_BOX  = "8 if page_size % 8 == 0 else 4 if page_size % 4 == 0 else 2 if page_size % 2 == 0 else 1"
// STAGE      = "TOKENS * KV_HEADS * DEPTH * SIZE"
// STAGES     = "min(32, 196608 // STAGE)"
//
// [tensor_maps.map_k]
// tensor  = "k"
// dims    = ["depth", "kv_heads", "pages * page_size"]
// box     = ["DEPTH", "KV_HEADS", "BOX"]
// swizzle = "none"
//
// [tensor_maps.map_v]
// tensor  = "v"
// dims    = ["depth", "kv_heads", "pages * page_size"]
// box     = ["DEPTH", "KV_HEADS", "BOX"]
// swizzle = "none"
//
// [workspace]
// averages   = "(max(1, sm_count // GROUPS) + sequences) * SLICES * heads * depth"
// statistics = "(max(1, sm_count // GROUPS) + sequences) * SLICES * heads * 2"
//
// [[launch]]
// kernel = "decode_tma_ring"
// grid   = ["max(1, sm_count // GROUPS) * GROUPS"]
// block  = [32, 12]
// shared = "STAGES * STAGE + 16 * STAGES"
// args   = [
//     "map_k", "map_v", "q", "page_table", "lengths", "averages", "statistics", "kv_heads", "sequences",
//     "pages_per_sequence",
// ]
//
// [[launch]]
// kernel = "decode_tma_merge"
// grid   = ["heads", "sequences"]
// block  = ["4 * depth"]
// args   = ["lengths", "averages", "statistics", "out", "sequences", "max(1, sm_count // GROUPS)"]
// programmatic = true
// early  = ["lengths"]
// ///
//
// Limit: DRAM. One warp of a block only copies. Its lanes look up pages in the page table, and each lane copies a box
// of whole tokens with up to 8 key heads, which are contiguous in memory. Up to 192 KB per multiprocessor are in
// flight, while the other warps compute from shared memory, each for one key head and up to QUERIES of its query heads.
// Warps of the copying warpgroup give up registers for those that compute (setmaxnreg). CUDA cores are enough: with 4
// query heads for each key head in bf16, their instructions need about a third of the time of the copies.
//
// The tiles of all sequences are numbered one after the other, and each block gets an equal share of them. So sequences
// of different lengths leave no multiprocessor idle. (Multiprocessors copy at different rates. To balance them, a
// quarter of the tiles was put into small shares that start last: up to 18 % slower on an H100.) If a share continues
// into the next sequence, the block first stores its partial result of the current one. The second kernel starts early
// and merges the partial results of each sequence. Partial results are stored at index block + sequence: from one
// partial result to the next, either the block or the sequence increases by one, so no index is used twice and no
// counter is needed. Ideas: Dao et al., "Flash-Decoding for long-context inference" (2023); Osama et al., "Stream-K"
// (2023).

#include <opbench/activations.cuh>
#include <opbench/barrier.cuh>
#include <opbench/tma.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int VECTOR = 16 / SIZE, LANES = 8, SLOTS = 32 / LANES, ITEMS = DEPTH / LANES, UNROLL = TILE / SLOTS;
constexpr int BOX_BYTES = BOX * KV_HEADS * DEPTH * SIZE, MERGERS = 16, MOST_WARPS = 8;
constexpr float NONE = -1e30f;  // below any score; its difference from itself is 0
typedef Packed<T, VECTOR> Pack;

__device__ __forceinline__ int tile_count(int length) { return (length + TOKENS - 1) / TOKENS; }

// The tiles of the sequences before number `end`; all lanes of a warp call it.
__device__ __forceinline__ int tile_prefix_sum(const int* lengths, int end) {
    int tiles = 0;
    for (int s = threadIdx.y * blockDim.x + threadIdx.x & 31; s < end; s += 32) tiles += tile_count(lengths[s]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(0xffffffffu, tiles, step);
    return tiles;
}

// The tiles of all sequences in one order, divided into equal shares. Only shares at the end can be empty.
struct TilePartition {
    int total, shares;  // `shares`: those that are not empty

    __device__ __forceinline__ TilePartition(int tiles, int blocks)
        : total(tiles), shares(max(1, min(blocks, tiles))) {}
    // The first tile of a block's share.
    __device__ __forceinline__ int first_tile(int block) const {
        return block < shares ? (int)((long long)total * block / shares) : total;
    }
    // The block in whose share a tile is.
    __device__ __forceinline__ int block_of(int tile) const {
        return (int)((((long long)tile + 1) * shares - 1) / total);
    }
};

// The rest of a block's share; the warps process it sequence by sequence.
struct Share {
    int sequence = 0, before = 0, tile, end;  // `before`: tiles of the sequences before this one

    // All lanes of a warp call it.
    __device__ __forceinline__ Share(const int* lengths, int sequences, int block, int blocks) {
        const TilePartition partition(tile_prefix_sum(lengths, sequences), blocks);
        tile = partition.first_tile(block);
        end = partition.first_tile(block + 1);
        if (tile == end) return;
        for (int base = 0;; base += 32) {
            const int lane = threadIdx.x, lane_tiles = base + lane < sequences ? tile_count(lengths[base + lane]) : 0;
            int sum = lane_tiles;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int lower = __shfl_up_sync(0xffffffffu, sum, step);
                if (lane >= step) sum += lower;
            }
            const unsigned later = __ballot_sync(0xffffffffu, tile < before + sum);
            if (later != 0) {
                const int which = __ffs(later) - 1;
                sequence = base + which;
                before += __shfl_sync(0xffffffffu, sum - lane_tiles, which);
                return;
            }
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
    }
    __device__ __forceinline__ void next_sequence(int tiles) {
        before += tiles;
        tile = before;
        ++sequence;
    }
};

// The stage of a ring and the parity of its phase.
struct Cursor {
    unsigned stage = 0, phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// Copy the keys and the values of each tile, in turn; all lanes of one warp call it.
__device__ __forceinline__ void copy_share(const TensorMap* map_k, const TensorMap* map_v, const int* page_table,
                                           const int* lengths, Share share, int pages_per_sequence, unsigned memory,
                                           unsigned full, unsigned empty) {
    Cursor at;
    for (; share.tile < share.end;) {
        const int length = lengths[share.sequence], tiles = tile_count(length);
        const int* const pages = page_table + (size_t)share.sequence * pages_per_sequence;
        for (; share.tile < min(share.end, share.before + tiles); ++share.tile) {
            const int first = (share.tile - share.before) * TOKENS;
            const int boxes = (min(TOKENS, length - first) + BOX - 1) / BOX;
#pragma unroll
            for (int of_values = 0; of_values < 2; ++of_values, at.advance()) {
                wait_for(empty + 8 * at.stage, at.phase ^ 1);
                if (threadIdx.x == 0) arrive_expect(full + 8 * at.stage, boxes * BOX_BYTES);
                __syncwarp();
                for (int box = threadIdx.x; box < boxes; box += 32) {
                    const int token = first + box * BOX, row = pages[token / PAGE_SIZE] * PAGE_SIZE + token % PAGE_SIZE;
                    load(memory + at.stage * STAGE + box * BOX_BYTES, of_values ? map_v : map_k, full + 8 * at.stage, 0,
                         blockIdx.x % GROUPS * KV_HEADS, row);
                }
            }
        }
        share.next_sequence(tiles);
    }
}

// One warp's query heads of one key head, and their averages over the tokens so far. LANES lanes share a token; lane
// `lane_column` of them has the columns lane_column, lane_column + LANES, ... of VECTOR elements. The tokens of a tile
// are split over slots.
struct Queries {
    float query[QUERIES][ITEMS], accumulator[QUERIES][ITEMS], maximum[QUERIES], sum[QUERIES];

    // `count` of the queries exist.
    __device__ __forceinline__ void begin(const T* q, int count, int lane_column) {
        const float scale = log2_e * rsqrtf((float)DEPTH);
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            const Pack* const row = reinterpret_cast<const Pack*>(q + min(h, count - 1) * DEPTH);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                query[h][i] = lane_of<T>(row[i / VECTOR * LANES + lane_column], i % VECTOR) * scale;
                accumulator[h][i] = 0.0f;
            }
            maximum[h] = NONE;
            sum[h] = 0.0f;
        }
    }

    // Replace `weight` by the scores of a tile's first `count` keys, then by their weights.
    __device__ __forceinline__ void add_keys(float (&weight)[UNROLL][QUERIES], const Pack* keys, int count,
                                             int lane_column, int slot) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const bool inside = u * SLOTS + slot < count;
            float score[QUERIES] = {};
#pragma unroll
            for (int c = 0; c < ITEMS / VECTOR; ++c) {
                const int at = (u * SLOTS + slot) * KV_HEADS * (DEPTH / VECTOR) + c * LANES + lane_column;
                const Pack pack = inside ? keys[at] : Pack{};
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                    for (int h = 0; h < QUERIES; ++h) score[h] += query[h][c * VECTOR + i] * lane_of<T>(pack, i);
            }
#pragma unroll
            for (int h = 0; h < QUERIES; ++h) {
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2)
                    score[h] += __shfl_xor_sync(0xffffffffu, score[h], step);
                weight[u][h] = inside ? score[h] : __int_as_float(0xff800000);  // -infinity
            }
        }
        float factor[QUERIES];
        bool changed = false;
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            float new_maximum = maximum[h];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) new_maximum = fmaxf(new_maximum, weight[u][h]);
            changed |= new_maximum > maximum[h];
            factor[h] = power_of_two(maximum[h] - new_maximum);
            maximum[h] = new_maximum;
            sum[h] *= factor[h];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum[h] += weight[u][h] = power_of_two(weight[u][h] - new_maximum);
        }
        if (!__any_sync(0xffffffffu, changed)) return;  // most tiles have no new maximum
#pragma unroll
        for (int h = 0; h < QUERIES; ++h)
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) accumulator[h][i] *= factor[h];
    }

    __device__ __forceinline__ void add_values(const float (&weight)[UNROLL][QUERIES], const Pack* values, int count,
                                               int lane_column, int slot) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const bool inside = u * SLOTS + slot < count;
#pragma unroll
            for (int c = 0; c < ITEMS / VECTOR; ++c) {
                const int at = (u * SLOTS + slot) * KV_HEADS * (DEPTH / VECTOR) + c * LANES + lane_column;
                const Pack pack = inside ? values[at] : Pack{};
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
#pragma unroll
                    for (int h = 0; h < QUERIES; ++h)
                        accumulator[h][c * VECTOR + i] += weight[u][h] * lane_of<T>(pack, i);
            }
        }
    }

    // Merge the slots, and write the first `count` queries' averages and statistics.
    __device__ __forceinline__ void write(float* averages, float2* statistics, int count, int lane_column, int slot) {
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
#pragma unroll
            for (int step = LANES; step < 32; step *= 2) {
                const float merged = fmaxf(maximum[h], __shfl_xor_sync(0xffffffffu, maximum[h], step));
                const float factor = power_of_two(maximum[h] - merged);
                maximum[h] = merged;
                sum[h] *= factor;
                sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], step);
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) {
                    accumulator[h][i] *= factor;
                    accumulator[h][i] += __shfl_xor_sync(0xffffffffu, accumulator[h][i], step);
                }
            }
            if (slot != h % SLOTS || h >= count) continue;  // the slots have equal sums now: each writes some heads
            if (lane_column == 0) statistics[h] = make_float2(maximum[h], sum[h]);
#pragma unroll
            for (int i = 0; i < ITEMS; i += 4)
                *reinterpret_cast<float4*>(averages + h * DEPTH + (i / VECTOR * LANES + lane_column) * VECTOR +
                                           i % VECTOR) =
                    make_float4(accumulator[h][i], accumulator[h][i + 1], accumulator[h][i + 2], accumulator[h][i + 3]);
        }
    }
};

// q [sequences][heads][DEPTH]; the maps have depth, key head and row of the cache as coordinates;
// averages [block + sequence][slice][heads][DEPTH], not yet divided by their sums; statistics: maximum and sum, without
// DEPTH
extern "C" __global__ void __launch_bounds__(384, 1)
    decode_tma_ring(const __grid_constant__ TensorMap map_k, const __grid_constant__ TensorMap map_v,
                    const T* __restrict__ q, const int* __restrict__ page_table, const int* __restrict__ lengths,
                    float* __restrict__ averages, float2* __restrict__ statistics, int kv_heads, int sequences,
                    int pages_per_sequence) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned memory = shared_address(shared), full = memory + STAGES * STAGE, empty = full + 8 * STAGES;
    if (threadIdx.y == 0 && threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, WARPS);
        }
        barrier_init_fence();
    }
    let_next_launch_start();
    const int block = blockIdx.x / GROUPS;  // neighbours have other heads of the same tokens
    Share share(lengths, sequences, block, gridDim.x / GROUPS);
    __syncthreads();
    if (threadIdx.y >= MOST_WARPS) {
        registers_down<40>();
        if (threadIdx.y > MOST_WARPS) return;
        copy_share(&map_k, &map_v, page_table, lengths, share, pages_per_sequence, memory, full, empty);
        return;
    }
    registers_up<232>();
    if (threadIdx.y >= WARPS) return;
    const int lane = threadIdx.x, lane_column = lane % LANES, slot = lane / LANES;
    const int slice = threadIdx.y % SLICES, kv_head = threadIdx.y / SLICES % KV_HEADS;
    const int first_query = threadIdx.y / (SLICES * KV_HEADS) * QUERIES, count = min(QUERIES, GROUP - first_query);
    const int heads = kv_heads * GROUP, first_head = (blockIdx.x % GROUPS * KV_HEADS + kv_head) * GROUP + first_query;
    const int offset = (slice * TILE * KV_HEADS + kv_head) * DEPTH * SIZE;  // of the warp's first token in a stage
    Queries queries;
    Cursor at;
    for (; share.tile < share.end;) {
        const int length = lengths[share.sequence], tiles = tile_count(length);
        queries.begin(q + ((size_t)share.sequence * heads + first_head) * DEPTH, count, lane_column);
        for (; share.tile < min(share.end, share.before + tiles); ++share.tile) {
            const int tokens = length - (share.tile - share.before) * TOKENS - slice * TILE;
            float weight[UNROLL][QUERIES];
            wait_for(full + 8 * at.stage, at.phase);
            queries.add_keys(weight, reinterpret_cast<const Pack*>(shared + at.stage * STAGE + offset), tokens,
                             lane_column, slot);
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * at.stage);
            at.advance();
            wait_for(full + 8 * at.stage, at.phase);
            queries.add_values(weight, reinterpret_cast<const Pack*>(shared + at.stage * STAGE + offset), tokens,
                               lane_column, slot);
            __syncwarp();
            if (lane == 0) arrive(empty + 8 * at.stage);
            at.advance();
        }
        const size_t row = ((size_t)(block + share.sequence) * SLICES + slice) * heads + first_head;
        queries.write(averages + row * DEPTH, statistics + row, count, lane_column, slot);
        share.next_sequence(tiles);
    }
}

// A block merges the parts of one sequence and head: MERGERS rows of threads take every MERGERS-th part, BATCH of them
// at a time, and a thread has four columns. The other launch has `blocks` shares.
// out [sequences][heads][DEPTH]
extern "C" __global__ void __launch_bounds__(4 * DEPTH)
    decode_tma_merge(const int* __restrict__ lengths, const float* averages, const float2* statistics,
                     T* __restrict__ out, int sequences, int blocks) {
    constexpr int BATCH = 8;
    __shared__ float4 parts[MERGERS][DEPTH / 4];
    __shared__ float sums[MERGERS];
    const int head = blockIdx.x, heads = gridDim.x, sequence = blockIdx.y, lane = threadIdx.x % 32;
    const int before = tile_prefix_sum(lengths, sequence), tiles = tile_count(lengths[sequence]);
    const TilePartition partition(tile_prefix_sum(lengths, sequences), blocks);
    const int first = tiles > 0 ? partition.block_of(before) : 0;
    const int count = tiles > 0 ? (partition.block_of(before + tiles - 1) - first + 1) * SLICES : 0;
    averages += ((size_t)(first + sequence) * SLICES * heads + head) * DEPTH;
    statistics += (size_t)(first + sequence) * SLICES * heads + head;
    wait_for_launches_before();
    float maximum = NONE;
    for (int start = lane; start < count; start += 32 * BATCH) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int part = start + i * 32;
            maximum = fmaxf(maximum, part < count ? statistics[(size_t)part * heads].x : NONE);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    const int column = threadIdx.x % (DEPTH / 4), row = threadIdx.x / (DEPTH / 4);
    float4 average = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float sum = 0.0f;
    for (int start = row; start < count; start += MERGERS * BATCH) {
        float2 part_statistics[BATCH];
        float4 from[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int part = min(start + i * MERGERS, count - 1);
            part_statistics[i] = statistics[(size_t)part * heads];
            from[i] = reinterpret_cast<const float4*>(averages + (size_t)part * heads * DEPTH)[column];
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const float weight = start + i * MERGERS < count ? power_of_two(part_statistics[i].x - maximum) : 0.0f;
            sum += weight * part_statistics[i].y;
            average.x += weight * from[i].x, average.y += weight * from[i].y;
            average.z += weight * from[i].z, average.w += weight * from[i].w;
        }
    }
    parts[row][column] = average;
    if (column == 0) sums[row] = sum;
    __syncthreads();
    if (threadIdx.x >= DEPTH) return;
    const int d = threadIdx.x;
    float result = 0.0f, all = 0.0f;
#pragma unroll
    for (int r = 0; r < MERGERS; ++r) {
        result += reinterpret_cast<const float*>(parts[r])[d];
        all += sums[r];
    }
    out[((size_t)sequence * heads + head) * DEPTH + d] = (T)(result / all);
}
