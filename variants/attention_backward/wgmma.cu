// /// opbench
// title     = "wgmma and TMA in persistent blocks: the next scores are multiplied while gradients are computed"
// builds_on = "mma"
// mechanism = [
//     "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile", "double_buffer", "tma",
//     "tensor_core", "warp_specialised", "persistent",
// ]
// product   = "bf16"
// tune      = { GROUPS = [2, 3], AHEAD = [1, 0], REGISTERS = [1, 0] }
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.QUERY_STRIDE = "query_stride"
// define.KEY_STRIDE   = "key_stride"
// define.PART_STRIDE  = "part_stride"
// define.SHARE        = "heads // kv_heads"
// define.TILES        = "128 // depth"
// define.STAGES       = "6 if depth == 64 and GROUPS == 2 else 4"
// supports  = { mask = ["none", "causal"], dtype = ["bf16"], layout = ["heads", "tokens", "qkv"] }
// requires  = [
//     "depth in (64, 128)", "REGISTERS == 0 or depth == 64",
//     "GROUPS == 2 or depth == 64 and REGISTERS == 0 and AHEAD == 0",
//     "queries < 2 ** 24 and keys < 2 ** 24",
//     "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32",
//     "cdiv(queries, 64 * GROUPS) * heads * batch < 2 ** 29 and cdiv(keys, 64 * GROUPS) * kv_heads * batch < 2 ** 30",
// ]
// workspace = { statistics = "batch * heads * cdiv(queries, 64) * 128" }
// compute_capability = "9.0a"
//
// [tensor_maps.map_q]
// tensor  = "q"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_qkv_q]
// tensor  = "qkv"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_k]
// tensor  = "k"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_qkv_k]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 64, 1, 1]
// offset  = "part_stride"
//
// [tensor_maps.map_v]
// tensor  = "v"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_qkv_v]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 64, 1, 1]
// offset  = "2 * part_stride"
//
// [tensor_maps.map_out]
// tensor  = "out"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * out_stride", "2 * query_head_stride", "2 * out_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_dout]
// tensor  = "dout"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * out_stride", "2 * query_head_stride", "2 * out_batch_stride"]
// box     = [64, 64, 1, 1]
//
// [tensor_maps.map_statistics]
// tensor  = "statistics"
// dims    = [64, "batch * heads * cdiv(queries, 64) * 2"]
// box     = [64, 2]
// swizzle = "none"
//
// [[launch]]
// kernel = "attention_backward_queries"
// grid   = ["min(sm_count, cdiv(queries, 64 * GROUPS) * heads * batch)"]
// block  = ["128 * (GROUPS + 1)"]
// shared = "(TILES * 192 * GROUPS + STAGES * 128) * depth * 2 + (TILES + STAGES) * 16"
// args   = [
//     "map_q?", "map_k?", "map_v?", "map_qkv_q?", "map_qkv_k?", "map_qkv_v?", "map_out", "map_dout", "logsumexp",
//     "statistics", "dq?", "dqkv?", { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads", "batch", "queries", "keys",
// ]
//
// [[launch]]
// kernel = "attention_backward_keys"
// grid   = ["min(sm_count, cdiv(keys, 64 * GROUPS) * kv_heads * batch)"]
// block  = ["128 * (GROUPS + 1)"]
// shared = "(TILES * 128 * GROUPS + STAGES * 128) * depth * 2 + STAGES * 1024 + (TILES + STAGES) * 16"
// args   = [
//     "map_q?", "map_k?", "map_v?", "map_qkv_q?", "map_qkv_k?", "map_qkv_v?", "map_dout", "map_statistics", "dk?",
//     "dv?", "dqkv?", "dqkv?", { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     "kv_heads", "batch", "queries", "keys",
// ]
// ///
//
// A warpgroup has 64 queries (or keys). It computes plain (or transposed) tiles of weights and slopes in registers, as
// the first operand of wgmma. While it computes slopes, the next scores are multiplied (AHEAD); while it computes
// exponentials, the last product of the step runs. With REGISTERS, the warpgroup's own rows are in registers too, so
// wgmma reads half as much shared memory. With three warpgroups (GROUPS), each has fewer registers, but two
// warpgroups work while one waits. Persistent blocks go from head to head, and the copying thread runs ahead of them.
// The first kernel also writes the statistics of all rows in the layout that the second kernel copies: whole tiles of
// 64, with weights of 0 after the last query. Blocks share no sums, so results are reproducible. Limit: weights and
// slopes are computed twice, 7 products instead of 5. Idea: Shah et al., "FlashAttention-3" (2024).

#include <opbench/activations.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int block_threads = 128 * (GROUPS + 1), copier = GROUPS == 2 ? 24 : 32, multiplier = GROUPS == 2 ? 240 : 160;
constexpr int BM = 64 * GROUPS, STEP = 64, HALVES = DEPTH / 64, SUMS = DEPTH / 2, SCORES = STEP / 2;
constexpr int OWN_BYTES = BM * DEPTH * 2, STEP_BYTES = STEP * DEPTH * 2, STATISTIC_BYTES = 2 * STEP * 4;
constexpr float LOG2_E = 1.44269504f;

// The work of a persistent attention kernel: blocks of rows of each head of each sequence. All blocks of some heads are
// processed before those of the next heads, so that blocks that run at the same time read the same tensors from L2.
// Among these heads, the longest blocks (of a causal mask) come first. Thread blocks take the work in alternating
// order, forwards and backwards, so that all get about the same amount.
template <int rows>
struct HeadScheduler {
    // blocks of a head; heads of a sequence, of all; heads that are processed together
    int blocks, heads, total, group;

    __device__ __forceinline__ HeadScheduler(int rows_of_head, int heads_, int sequences)
        : blocks((rows_of_head + rows - 1) / rows), heads(heads_), total(heads_ * sequences),
          group((2 * (int)gridDim.x + blocks - 1) / blocks) {}
    // Call work(block, head, sequence) for the work of this thread block; block 0 of a head is the longest.
    template <class Work>
    __device__ __forceinline__ void for_each(const Work& work) const {
        const int count = blocks * total;
        bool back = false;
        for (int start = 0; start < count; start += gridDim.x, back = !back) {
            const int index = start + (int)(back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
            if (index >= count) continue;
            const int strip = index / (group * blocks), within = index - strip * group * blocks;
            const int together = min(group, total - strip * group), head = strip * group + within % together;
            work(within / together, head % heads, head / heads);
        }
    }
};

// A ring in which each warp waits for and releases the stages. If one thread arrived for its whole warpgroup, a stage
// that needs no products could be filled again, and its phase could flip twice, before another warp has read the phase:
// that warp would wait forever.
template <int stages, int stage_bytes, int copied = stage_bytes>
struct WarpRing : Ring<stages, stage_bytes, 1, 4 * GROUPS, copied> {
    typedef Ring<stages, stage_bytes, 1, 4 * GROUPS, copied> Base;
    using Base::Base;

    // Wait for the next stage and return it.
    __device__ __forceinline__ unsigned acquire_next() {
        const unsigned acquired = this->stage;
        wait_for(this->full + 8 * acquired, this->phase);
        this->advance();
        return acquired;
    }
    __device__ __forceinline__ void release(unsigned stage_index) const {
        __syncwarp();  // all lanes have seen and read the stage
        if (threadIdx.x % 32 == 0) arrive(this->empty + 8 * stage_index);
    }
    // Give back the next stages unread.
    __device__ __forceinline__ void discard(int count) {
        for (int i = 0; i < count; ++i) release(acquire_next());
    }
};
typedef WarpRing<TILES, 3 * OWN_BYTES> QueryTiles;
typedef WarpRing<STAGES, 2 * STEP_BYTES> KeyStages;
typedef WarpRing<TILES, 2 * OWN_BYTES> KeyTiles;
typedef WarpRing<STAGES, 2 * STEP_BYTES + 1024, 2 * STEP_BYTES + STATISTIC_BYTES> QueryStages;

// Copy `rows` rows of a head, from `first` on, in pieces of 64 rows of 64 numbers.
template <int rows>
__device__ __forceinline__ void load_rows(unsigned to, const TensorMap* map, unsigned full, int first, int head,
                                          int sequence) {
    for (int half = 0; half < HALVES; ++half)
        for (int row = 0; row < rows; row += 64)
            load(to + (half * rows + row) * 128, map, full, half * 64, first + row, head, sequence);
}

// The address of a warp's 16 bytes of row lane % 16 for ldmatrix, in a tile of 128 rows: columns `slice` * 16 and on.
__device__ __forceinline__ unsigned matrix_row(unsigned tile, int slice) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    return tile + slice / 4 * BM * 128 + row * 128 + ((slice % 4 * 2 + lane / 16) ^ row % 8) * 16;
}

// A warpgroup's own 64 rows, the first operand of products over the depth.
struct OwnRows {
    unsigned tile, number[REGISTERS ? DEPTH / 16 : 1][4];

    __device__ __forceinline__ void set(unsigned tile_) {
        tile = tile_;
        if constexpr (REGISTERS)
#pragma unroll
            for (int slice = 0; slice < DEPTH / 16; ++slice) load_four(number[slice], matrix_row(tile, slice));
    }
    // product = these rows times 64 rows of the other operand
    __device__ __forceinline__ void multiply(float (&product)[SCORES], unsigned others) const {
#pragma unroll
        for (int slice = 0; slice < DEPTH / 16; ++slice) {
            const unsigned long long b = descriptor(others + slice / 4 * STEP * 128) + slice % 4 * 2;
            if constexpr (REGISTERS)
                wgmma<Format::bf16>(product, number[slice], b, slice > 0);
            else
                wgmma<Format::bf16>(product, descriptor(tile + slice / 4 * BM * 128) + slice % 4 * 2, b, slice > 0);
        }
    }
};

typedef unsigned Factors[STEP / 16][4];
__device__ __forceinline__ void round_factors(Factors& factors, const float (&from)[SCORES]) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; ++i) factors[i / 4][i % 4] = pack_bf16(from[2 * i], from[2 * i + 1]);
}
// sum += factors times 64 rows
__device__ __forceinline__ void add_product(float (&sum)[SUMS], const Factors& factors, unsigned rows, int add) {
    const unsigned long long b = descriptor(rows, 1024, STEP * 128);
#pragma unroll
    for (int slice = 0; slice < STEP / 16; ++slice)
        wgmma<Format::bf16, true>(sum, factors[slice], b + slice * 128, add || slice > 0);
}

// Store a thread's rows, `top` and `top` + 8, times a factor; rows from `end` on do not exist.
template <int stride>
__device__ __forceinline__ void store_rows(unsigned short* to, const float (&sum)[SUMS], int top, int end,
                                           float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = top + half * 8;
        if (row >= end) continue;
#pragma unroll
        for (int d = 0; d < DEPTH / 8; ++d)
            *reinterpret_cast<unsigned*>(to + (size_t)row * stride + d * 8 + threadIdx.x % 4 * 2) =
                pack_bf16(sum[d * 4 + half * 2] * factor, sum[d * 4 + half * 2 + 1] * factor);
    }
}

// x . y of two pairs of bf16
__device__ __forceinline__ float dot(unsigned x, unsigned y) {
    return __uint_as_float(x << 16) * __uint_as_float(y << 16) +
           __uint_as_float(x & 0xffff0000u) * __uint_as_float(y & 0xffff0000u);
}

// Distances in elements between neighbouring sequences and between neighbouring heads.
struct Strides { unsigned batch, head; };

// The maps have depth, token, head and sequence as coordinates, whatever the layout. dq: rows of DEPTH, QUERY_STRIDE
// apart. logsumexp [batch][heads][queries]; statistics [batch][heads][tiles of 64 queries][2][64]: logarithms to the
// base 2, then delta
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    attention_backward_queries(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                               const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_out,
                               const __grid_constant__ TensorMap map_dout, const float* __restrict__ logsumexp,
                               float* __restrict__ statistics, unsigned short* __restrict__ dq, Strides q_strides,
                               int heads, int batch, int queries, int keys) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), stages = memory + QueryTiles::bytes;
    const unsigned barriers = stages + KeyStages::bytes;
    QueryTiles tiles(memory, barriers);
    KeyStages ring(stages, barriers + QueryTiles::barrier_bytes);
    const HeadScheduler<BM> scheduler(queries, heads, batch);
    const int causal_offset = keys - queries;
    auto steps_until = [&](int end) { return ((CAUSAL ? min(keys, end + causal_offset) : keys) + STEP - 1) / STEP; };
    // Block 0 ends with the last tile of queries; the block with the highest number may begin before the first query.
    const int query_tiles = (queries + STEP - 1) / STEP;
    auto place = [&](int block) { return query_tiles * STEP - (block + 1) * BM; };
    if (threadIdx.x == 0) tiles.init(), ring.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier>();
        if (threadIdx.x > 0) return;
        scheduler.for_each([&](int block, int head, int sequence) {
            const int first = place(block);
            tiles.fill(1, [&](int, unsigned to, unsigned full) {
                load_rows<BM>(to, &map_q, full, first, head, sequence);
                load_rows<BM>(to + OWN_BYTES, &map_dout, full, first, head, sequence);
                load_rows<BM>(to + 2 * OWN_BYTES, &map_out, full, first, head, sequence);
            });
            ring.fill(steps_until(first + BM), [&](int step, unsigned to, unsigned full) {
                load_rows<STEP>(to, &map_k, full, step * STEP, head / SHARE, sequence);
                load_rows<STEP>(to + STEP_BYTES, &map_v, full, step * STEP, head / SHARE, sequence);
            });
        });
        return;
    }
    registers_up<multiplier>();
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const float scale = LOG2_E * rsqrtf((float)DEPTH);
    float score[SCORES], weight[SCORES], slope[SCORES], sum[SUMS];
    Factors factors;
    OwnRows own_queries, own_gradients;
    scheduler.for_each([&](int block, int head, int sequence) {
        const int first = place(block) + group * 64, top = first + warp * 16 + lane / 4;  // rows: top, top + 8
        const int steps = steps_until(first + 64), block_steps = steps_until(place(block) + BM);
        const size_t head_index = (size_t)sequence * heads + head;
        if (first < 0) {
            tiles.discard(1);
            return ring.discard(block_steps);
        }
        float logarithm[2], delta[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = top + half * 8;
            logarithm[half] =
                query < queries ? logsumexp[head_index * queries + query] * LOG2_E : __int_as_float(0x7f800000);
        }
        const unsigned acquired = tiles.acquire_next(),
                       tile = tiles.memory + acquired * 3 * OWN_BYTES + group * 64 * 128;
        own_queries.set(tile);
        own_gradients.set(tile + OWN_BYTES);
#pragma unroll
        for (int slice = 0; slice < DEPTH / 16; ++slice) {
            unsigned out[4], gradient[4];
            load_four(out, matrix_row(tile + 2 * OWN_BYTES, slice));
            load_four(gradient, matrix_row(tile + OWN_BYTES, slice));
#pragma unroll
            for (int i = 0; i < 4; ++i) delta[i % 2] += dot(out[i], gradient[i]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            delta[half] += __shfl_xor_sync(0xffffffffu, delta[half], 1);
            delta[half] += __shfl_xor_sync(0xffffffffu, delta[half], 2);
            if (lane % 4 == 0) {
                float* const to = statistics + (head_index * query_tiles + first / STEP) * 128;
                to[warp * 16 + lane / 4 + half * 8] = logarithm[half];
                to[64 + warp * 16 + lane / 4 + half * 8] = delta[half];
            }
        }

        auto exponentials = [&](int step) {
            const bool partial = (step + 1) * STEP > keys || CAUSAL && (step + 1) * STEP > first + causal_offset + 1;
#pragma unroll
            for (int i = 0; i < SCORES; ++i) weight[i] = power_of_two(fmaf(score[i], scale, -logarithm[i / 2 % 2]));
            if (!partial) return;
#pragma unroll
            for (int i = 0; i < SCORES; ++i) {
                const int key = step * STEP + i / 4 * 8 + lane % 4 * 2 + i % 2;
                if (key >= keys || CAUSAL && key > top + i / 2 % 2 * 8 + causal_offset) weight[i] = 0.0f;
            }
        };
        auto slopes = [&] {
#pragma unroll
            for (int i = 0; i < SCORES; ++i) slope[i] = weight[i] * (slope[i] - delta[i / 2 % 2]);
            round_factors(factors, slope);
        };
        unsigned current = ring.acquire_next();
        wgmma_fence();
        own_queries.multiply(score, ring.memory + current * 2 * STEP_BYTES);
        wgmma_commit();
        wgmma_wait<0>();
        exponentials(0);
        for (int step = 1; step < steps; ++step) {
            const unsigned key_tile = ring.memory + current * 2 * STEP_BYTES;
            wgmma_fence();
            own_gradients.multiply(slope, key_tile + STEP_BYTES);
            wgmma_commit();
            const unsigned next = ring.acquire_next();
            if constexpr (AHEAD) {
                wgmma_fence();
                own_queries.multiply(score, ring.memory + next * 2 * STEP_BYTES);
                wgmma_commit();
            }
            wgmma_wait<AHEAD>();
            slopes();
            wgmma_fence();
            if constexpr (!AHEAD) {
                own_queries.multiply(score, ring.memory + next * 2 * STEP_BYTES);
                wgmma_commit();
            }
            add_product(sum, factors, key_tile, step > 1);
            wgmma_commit();
            wgmma_wait<1>();
            exponentials(step);
            wgmma_wait<0>();
            ring.release(current);
            current = next;
        }
        const unsigned key_tile = ring.memory + current * 2 * STEP_BYTES;
        wgmma_fence();
        own_gradients.multiply(slope, key_tile + STEP_BYTES);
        wgmma_commit();
        wgmma_wait<0>();
        slopes();
        wgmma_fence();
        add_product(sum, factors, key_tile, steps > 1);
        wgmma_commit();
        wgmma_wait<0>();
        ring.release(current);
        tiles.release(acquired);
        ring.discard(block_steps - steps);  // keys that only the other warpgroups see
        store_rows<QUERY_STRIDE>(dq + (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head, sum, top,
                                 queries, rsqrtf((float)DEPTH));
    });
}

// dk, dv: rows of DEPTH, KEY_STRIDE apart. In one packed array, the keys of a token are PART_STRIDE elements after its
// queries, and its values PART_STRIDE elements after its keys. statistics: as above
extern "C" __global__ void __launch_bounds__(block_threads, 1)
    attention_backward_keys(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                            const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_dout,
                            const __grid_constant__ TensorMap map_statistics, unsigned short* __restrict__ dk,
                            unsigned short* __restrict__ dv, Strides k_strides, int kv_heads, int batch, int queries,
                            int keys) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), stages = memory + KeyTiles::bytes;
    const unsigned barriers = stages + QueryStages::bytes;
    constexpr int stage_bytes = 2 * STEP_BYTES + 1024;
    // With a depth of 128, the sums take most registers: slopes are computed when the weights' registers are free.
    constexpr bool ahead = AHEAD && DEPTH == 64;
    KeyTiles tiles(memory, barriers);
    QueryStages ring(stages, barriers + KeyTiles::barrier_bytes);
    const HeadScheduler<BM> scheduler(keys, kv_heads, batch);
    const int causal_offset = keys - queries, query_tiles = (queries + STEP - 1) / STEP;
    // Return the first tile of queries that has a query which sees a key from `first` on.
    auto start_of = [&](int first) { return CAUSAL ? min(max(0, first - causal_offset) / STEP, query_tiles - 1) : 0; };
    if (threadIdx.x == 0) tiles.init(), ring.init();
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier>();
        if (threadIdx.x > 0) return;
        scheduler.for_each([&](int block, int kv_head, int sequence) {
            const int start = start_of(block * BM), per_head = query_tiles - start;
            tiles.fill(1, [&](int, unsigned to, unsigned full) {
                load_rows<BM>(to, &map_k, full, block * BM, kv_head, sequence);
                load_rows<BM>(to + OWN_BYTES, &map_v, full, block * BM, kv_head, sequence);
            });
            for (int head = kv_head * SHARE; head < (kv_head + 1) * SHARE; ++head)
                ring.fill(per_head, [&](int step, unsigned to, unsigned full) {
                    const int tile = start + step;
                    load_rows<STEP>(to, &map_q, full, tile * STEP, head, sequence);
                    load_rows<STEP>(to + STEP_BYTES, &map_dout, full, tile * STEP, head, sequence);
                    load(to + 2 * STEP_BYTES, &map_statistics, full, 0,
                         ((sequence * kv_heads * SHARE + head) * query_tiles + tile) * 2);
                });
        });
        return;
    }
    registers_up<multiplier>();
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const float scale = LOG2_E * rsqrtf((float)DEPTH);
    float score[SCORES], weight[SCORES], slope[SCORES], of_key[SUMS], of_value[SUMS];
    Factors weights, slopes;
    OwnRows own_keys, own_values;
    scheduler.for_each([&](int block, int kv_head, int sequence) {
        const int first = block * BM + group * 64,
                  top = first + warp * 16 + lane / 4;  // the thread's keys: top, top + 8
        const int start = start_of(first), skipped = start - start_of(block * BM), per_head = query_tiles - start;
        const int steps = per_head * SHARE;
        if (first >= keys) {
            tiles.discard(1);
            return ring.discard((query_tiles - start_of(block * BM)) * SHARE);
        }
        const unsigned acquired = tiles.acquire_next(),
                       tile = tiles.memory + acquired * 2 * OWN_BYTES + group * 64 * 128;
        own_keys.set(tile);
        own_values.set(tile + OWN_BYTES);

        // Take the stage of the next tile of queries; those that only the other warpgroup's keys see are skipped.
        int in_head = 0;
        auto next_stage = [&] {
            if (CAUSAL && in_head == 0) ring.discard(skipped);
            if (++in_head == per_head) in_head = 0;
            return ring.acquire_next();
        };
        // The statistics of the thread's columns in a stage.
        auto statistics = [&](unsigned stage, int which) {
            return reinterpret_cast<const float*>(shared + KeyTiles::bytes + stage * stage_bytes + 2 * STEP_BYTES) +
                   which * STEP + lane % 4 * 2;
        };
        auto exponentials = [&](unsigned stage, int step) {
            const float* const logarithms = statistics(stage, 0);
#pragma unroll
            for (int tile = 0; tile < SCORES / 4; ++tile) {
                const float2 logarithm = *reinterpret_cast<const float2*>(logarithms + tile * 8);
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    weight[tile * 4 + e] =
                        power_of_two(fmaf(score[tile * 4 + e], scale, -(e % 2 ? logarithm.y : logarithm.x)));
            }
            const int query = (start + (SHARE > 1 ? step % per_head : step)) * STEP;
            if (CAUSAL && first + 63 > query + causal_offset)
#pragma unroll
                for (int i = 0; i < SCORES; ++i)
                    if (top + i / 2 % 2 * 8 > query + i / 4 * 8 + lane % 4 * 2 + i % 2 + causal_offset)
                        weight[i] = 0.0f;
            round_factors(weights, weight);
        };
        auto compute_slopes = [&](unsigned stage) {
            const float* const deltas = statistics(stage, 1);
#pragma unroll
            for (int tile = 0; tile < SCORES / 4; ++tile) {
                const float2 delta = *reinterpret_cast<const float2*>(deltas + tile * 8);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float factor = weight[tile * 4 + e];
                    if constexpr (GROUPS == 3) {  // from the rounded weight, as registers are few
                        const unsigned pair = weights[tile / 2][tile % 2 * 2 + e / 2];
                        factor = __uint_as_float(e % 2 ? pair & 0xffff0000u : pair << 16);
                    }
                    slope[tile * 4 + e] = factor * (slope[tile * 4 + e] - (e % 2 ? delta.y : delta.x));
                }
            }
            round_factors(slopes, slope);
        };
        unsigned current = next_stage();
        wgmma_fence();
        own_keys.multiply(score, ring.memory + current * stage_bytes);
        wgmma_commit();
        wgmma_wait<0>();
        exponentials(current, 0);
        for (int step = 1; step < steps; ++step) {
            const unsigned query_tile = ring.memory + current * stage_bytes, gradient_tile = query_tile + STEP_BYTES;
            wgmma_fence();
            own_values.multiply(slope, gradient_tile);
            wgmma_commit();
            add_product(of_value, weights, gradient_tile, step > 1);
            wgmma_commit();
            const unsigned next = next_stage();
            if constexpr (ahead) {
                wgmma_fence();
                own_keys.multiply(score, ring.memory + next * stage_bytes);
                wgmma_commit();
            }
            wgmma_wait<DEPTH == 64 ? 1 + ahead : 0>();
            compute_slopes(current);
            wgmma_fence();
            if constexpr (!ahead) {
                own_keys.multiply(score, ring.memory + next * stage_bytes);
                wgmma_commit();
            }
            add_product(of_key, slopes, query_tile, step > 1);
            wgmma_commit();
            wgmma_wait<1>();
            exponentials(next, step);
            wgmma_wait<0>();
            ring.release(current);
            current = next;
        }
        const unsigned query_tile = ring.memory + current * stage_bytes, gradient_tile = query_tile + STEP_BYTES;
        wgmma_fence();
        own_values.multiply(slope, gradient_tile);
        wgmma_commit();
        add_product(of_value, weights, gradient_tile, steps > 1);
        wgmma_commit();
        wgmma_wait<DEPTH == 64>();
        compute_slopes(current);
        wgmma_fence();
        add_product(of_key, slopes, query_tile, steps > 1);
        wgmma_commit();
        wgmma_wait<0>();
        ring.release(current);
        tiles.release(acquired);
        const size_t offset = (size_t)sequence * k_strides.batch + (size_t)kv_head * k_strides.head + PART_STRIDE;
        store_rows<KEY_STRIDE>(dk + offset, of_key, top, keys, rsqrtf((float)DEPTH));
        store_rows<KEY_STRIDE>(dv + offset + PART_STRIDE, of_value, top, keys, 1.0f);
    });
}
