// /// opbench
// title     = "head dimension 64: two blocks per multiprocessor, or two warpgroups that split the keys"
// builds_on = "wgmma"
// mechanism = [
//     "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile", "double_buffer", "tma",
//     "tensor_core", "fewer_operations", "overlapped_launch",
// ]
// product   = "bf16"
// tune      = { SPLIT = [1, 2] }
// tile      = { m = "BM", n = 64 }
// define.BM     = "128 // SPLIT"
// define.BLOCKS = "3 - SPLIT"
// define.STAGES = "4 + SPLIT"
// define.CAUSAL = "mask == 'causal'"
// define.OUT_STRIDE = "out_stride"
// define.STATISTICS = "statistics == 'logsumexp'"
// supports.mask   = ["none", "causal"]
// supports.dtype  = ["bf16"]
// supports.layout = ["heads", "tokens", "qkv"]
// supports.statistics = ["none", "logsumexp"]
// requires  = [
//     "depth == 64", "batch <= 65535 and heads <= 65535", "queries <= 2 ** 21 and keys < 2 ** 24",
//     "out_batch_stride < 2 ** 32",
// ]
// compute_capability = "9.0a"
//
// [tensor_maps.map_q]
// tensor  = "q"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, "BM", 1, 1]
//
// [tensor_maps.map_qkv_q]
// tensor  = "qkv"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, "BM", 1, 1]
//
// [tensor_maps.map_k]
// tensor  = "k"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 128, 1, 1]
//
// [tensor_maps.map_qkv_k]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 128, 1, 1]
// offset  = "part_stride"
//
// [tensor_maps.map_v]
// tensor  = "v"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 128, 1, 1]
//
// [tensor_maps.map_qkv_v]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, 128, 1, 1]
// offset  = "2 * part_stride"
//
// [[launch]]
// kernel = "attention_wgmma_blocks"
// grid   = ["heads", "cdiv(queries, BM)", "batch"]
// block  = [256]
// shared = "BM * 128 + SPLIT * STAGES * (128 * 128 + 16) + 8"
// programmatic = "SPLIT == 2"
// args   = [
//     "map_q?", "map_k?", "map_v?", "map_qkv_q?", "map_qkv_k?", "map_qkv_v?", "out", "logsumexp?",
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads // kv_heads", "queries", "keys",
// ]
// ///
//
// In wgmma one block fills a multiprocessor, so nothing hides the block's start, its end and the wait for its scores.
// Here two blocks fit on a multiprocessor, because a block has no warpgroup that only copies: one warp of the warpgroup
// with the most keys also copies, and scores and weights share registers. While a warpgroup waits for its products, the
// others compute exponentials. The value that is subtracted before the exponential is raised only if a score exceeds it
// by more than 8; otherwise nothing is rescaled. A last tile is half as wide if its other half is masked. With SPLIT =
// 2, for few heads, the two warpgroups take turns with the tiles of keys, for the same 64 queries; one block fills a
// multiprocessor, and starts before the previous launch has ended. Limit: instructions. For 64 x 128 scores, a warp
// needs 512 cycles of exponentials, as many of products, and 470 instructions. Ideas: Shah et al., "FlashAttention-3"
// (2024); Dao et al., "Flash-Decoding" (2023).

#include <opbench/activations.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int DEPTH = 64, BN = 128, SCORES = BN / 2, SUMS = DEPTH / 2;
constexpr int QUERY_BYTES = BM * DEPTH * 2, TILE_BYTES = BN * DEPTH * 2;
constexpr float LOG2_E = 1.44269504f, NONE = -1e30f;
constexpr float SLACK = 8.0f;  // weights are at most 2 ** SLACK
typedef Ring<STAGES, TILE_BYTES, 1, 2 / SPLIT> Stages;

// The softmax of a thread's two rows: the values that are subtracted before the exponential, and the sums of the
// weights.
struct Softmax {
    float shift[2] = {NONE, NONE}, sum[2] = {}, factor[2];

    // Replace scores by weights. Return whether a row of the warp has a score so far above `shift` that the shift is
    // raised to the maximum; then `factor` rescales earlier accumulators.
    template <int count>
    __device__ __forceinline__ bool operator()(float (&score)[count], float scale) {
        float maximum[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            maximum[half] = shift[half];
#pragma unroll
            for (int i = half * 2; i < count; i += 4)
                maximum[half] = fmaxf(maximum[half], fmaxf(score[i], score[i + 1]));
            maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(0xffffffffu, maximum[half], 1));
            maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(0xffffffffu, maximum[half], 2));
        }
        const float max_increase = fmaxf(maximum[0] - shift[0], maximum[1] - shift[1]) * scale;
        const bool rescales = __any_sync(0xffffffffu, max_increase > SLACK);
        if (rescales) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                factor[half] = power_of_two((shift[half] - maximum[half]) * scale);
                shift[half] = maximum[half];
                sum[half] *= factor[half];
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float scaled_shift = shift[half] * scale;
#pragma unroll
            for (int i = half * 2; i < count; i += 4) {
                score[i] = power_of_two(score[i] * scale - scaled_shift);
                score[i + 1] = power_of_two(score[i + 1] * scale - scaled_shift);
                sum[half] += score[i] + score[i + 1];
            }
        }
        return rescales;
    }
};

// Distances in elements between neighbouring sequences and between neighbouring heads.
struct Strides { unsigned batch, head; };

// The coordinates of the tensor maps are depth, token, head and sequence, in every layout. out has rows of DEPTH
// elements; the rows of neighbouring tokens are OUT_STRIDE elements apart. logsumexp [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(256, BLOCKS)
    attention_wgmma_blocks(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                           const __grid_constant__ TensorMap map_v, unsigned short* __restrict__ out,
#if STATISTICS
                           float* __restrict__ logsumexp,
#endif
                           Strides out_strides, int heads_per_kv_head, int queries, int keys) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), rings = memory + QUERY_BYTES;
    const unsigned barriers = rings + SPLIT * Stages::bytes, query_full = barriers + SPLIT * Stages::barrier_bytes;
    const unsigned sequence = blockIdx.z, head = blockIdx.x;
    const int first = (CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * BM;  // causal: most keys first
    const int causal_offset = keys - queries;
    // With SPLIT, the warpgroups take turns with the tiles of keys, each with a ring of its own; otherwise each
    // warpgroup has other queries.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
    const int part = SPLIT > 1 ? group : 0;
    const int first_row = first + (SPLIT > 1 ? 0 : group * 64);
    auto last_key = [&](int row) { return CAUSAL ? min(keys, row + causal_offset) : keys; };
    auto tiles_until = [&](int row) { return max(1, ((last_key(row) + BN - 1) / BN - part + SPLIT - 1) / SPLIT); };
    const int steps = tiles_until(first_row + 64);
    Stages ring(rings + part * Stages::bytes, barriers + part * Stages::barrier_bytes), copied = ring;
    if (threadIdx.x == 0) {
        for (int i = 0; i < SPLIT; ++i) Stages(rings + i * Stages::bytes, barriers + i * Stages::barrier_bytes).init();
        barrier_init(query_full, 1);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_launches_before();
    let_next_launch_start();

    // One warp of the warpgroup with the most keys copies tiles. It waits only for stages that were read one step
    // before.
    const int copies = warp == (SPLIT > 1 ? part : 1) * 4 ? 2 * tiles_until(first + BM) : 0;
    int copy = 0;
    auto copy_until = [&](int end) {
        for (; copy < min(end, copies); ++copy, copied.advance()) {
            bool of_keys = copy % 2 == 0;
            int tile = copy / 2;
            if (SPLIT > 1 && copy > 0) {
                of_keys = copy % 2 == 1 && copy < copies - 1;
                tile = copy == copies - 1 ? copies / 2 - 1 : of_keys ? (copy + 1) / 2 : copy / 2 - 1;
            }
            wait_for(copied.empty + 8 * copied.stage, copied.phase ^ 1);
            if (lane > 0) continue;
            arrive_expect(copied.full + 8 * copied.stage, TILE_BYTES);
            load(copied.memory + copied.stage * TILE_BYTES, of_keys ? &map_k : &map_v, copied.full + 8 * copied.stage,
                 0, (tile * SPLIT + part) * BN, head / heads_per_kv_head, sequence);
        }
    };
    if (threadIdx.x == 0) {
        arrive_expect(query_full, QUERY_BYTES);
        load(memory, &map_q, query_full, 0, first, head, sequence);
    }
    copy_until(STAGES);
    const unsigned group_queries = memory + (SPLIT > 1 ? 0 : group * 64 * 128);
    const int row = first_row + warp % 4 * 16, top = row + lane / 4;  // the thread's rows: top, top + 8
    const float scale = LOG2_E * rsqrtf((float)DEPTH);
    float accumulator[SUMS];
    Softmax softmax;

    // Scores of the first 2 * count keys of a tile.
    auto multiply_keys = [&](auto& score) {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        wgmma_fence();
        multiply_stage<Format::bf16>(score, group_queries, ring.memory + ring.stage * TILE_BYTES, 0);
        wgmma_commit();
        ring.advance();
    };
    auto multiply_values = [&](auto& weights, int add) {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        const unsigned long long tile = descriptor(ring.memory + ring.stage * TILE_BYTES, 1024, BN * 128);
        wgmma_fence();
#pragma unroll
        for (int slice = 0; slice < (int)(sizeof(weights) / sizeof(weights[0])); ++slice)
            wgmma<Format::bf16, true>(accumulator, weights[slice], tile + slice * 128, add || slice > 0);
        wgmma_commit();
        ring.advance();
    };
    auto first_key = [&](int step) { return (step * SPLIT + part) * BN; };
    auto mask_scores = [&](auto& score, int step) {
        constexpr int count = sizeof(score[0]) / sizeof(float);
        const int begin = first_key(step), end = begin + 2 * count;
        if (end <= keys && (!CAUSAL || end <= first_row + causal_offset + 1)) return;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int key = begin + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (key >= keys || CAUSAL && key > top + i / 2 % 2 * 8 + causal_offset)
                score[0][i] = __int_as_float(0xff800000);
        }
    };
    auto rescale_sums = [&] {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) accumulator[i] *= softmax.factor[i / 2 % 2];
    };
    auto round_weights = [&](auto& weights, auto& score) {
#pragma unroll
        for (int i = 0; i < (int)(sizeof(weights) / 4); ++i)
            weights[i / 4][i % 4] = pack_bf16(score[0][2 * i], score[0][2 * i + 1]);
    };

    wait_for(query_full, 0);
    if constexpr (SPLIT > 1) {  // start the next tile's scores before this tile's values
        float score[1][SCORES];
        unsigned weights[BN / 16][4];
        unsigned keys_stage = ring.stage;
        multiply_keys(score);
        wgmma_wait<0>();
        ring.release(keys_stage);
        mask_scores(score, 0);
        softmax(score[0], scale);
        round_weights(weights, score);
        for (int step = 1; step < steps; ++step) {
            keys_stage = ring.stage;
            multiply_keys(score);
            const unsigned values_stage = ring.stage;
            multiply_values(weights, step > 1);
            copy_until(STAGES + 2 * step - 1);
            wgmma_wait<1>();
            ring.release(keys_stage);
            mask_scores(score, step);
            const bool rescales = softmax(score[0], scale);
            wgmma_wait<0>();
            ring.release(values_stage);
            if (rescales) rescale_sums();
            round_weights(weights, score);
        }
        multiply_values(weights, steps > 1);
        wgmma_wait<0>();
    } else {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) accumulator[i] = 0.0f;
        auto use_tile = [&](auto half, int step) {
            constexpr int used = decltype(half)::value ? BN / 2 : BN;
            float score[1][used / 2];
            unsigned weights[used / 16][4];
            const unsigned keys_stage = ring.stage;
            multiply_keys(score);
            copy_until(STAGES + 2 * step);
            wgmma_wait<0>();
            ring.release(keys_stage);
            mask_scores(score, step);
            if (softmax(score[0], scale)) rescale_sums();
            round_weights(weights, score);
            const unsigned values_stage = ring.stage;
            multiply_values(weights, 1);
            wgmma_wait<0>();
            ring.release(values_stage);
        };
        // The warpgroup's rows may need half of their last tile.
        const bool half_last = first_key(steps - 1) + BN / 2 >= last_key(first_row + 64);
        for (int step = 0; step < steps - half_last; ++step) use_tile(Choice<false>(), step);
        if (half_last) use_tile(Choice<true>(), steps - 1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        softmax.sum[half] += __shfl_xor_sync(0xffffffffu, softmax.sum[half], 1);
        softmax.sum[half] += __shfl_xor_sync(0xffffffffu, softmax.sum[half], 2);
    }
#if SPLIT > 1
    // The second warpgroup passes its shifts and sums through its ring, which is empty now.
    float* const other = reinterpret_cast<float*>(shared + QUERY_BYTES + Stages::bytes) + threadIdx.x % 128;
    if (part == 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            other[half * 128] = softmax.shift[half], other[(2 + half) * 128] = softmax.sum[half];
#pragma unroll
        for (int i = 0; i < SUMS; ++i) other[(4 + i) * 128] = accumulator[i];
    }
    __syncthreads();
    if (part == 1) return;
    float share[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float maximum = fmaxf(softmax.shift[half], other[half * 128]);
        softmax.factor[half] = power_of_two((softmax.shift[half] - maximum) * scale);
        share[half] = power_of_two((other[half * 128] - maximum) * scale);
        softmax.shift[half] = maximum;
        softmax.sum[half] = softmax.sum[half] * softmax.factor[half] + other[(2 + half) * 128] * share[half];
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i)
        accumulator[i] = accumulator[i] * softmax.factor[i / 2 % 2] + other[(4 + i) * 128] * share[i / 2 % 2];
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        softmax.factor[half] = 1.0f / softmax.sum[half];
#if STATISTICS
        if (lane % 4 == 0 && top + half * 8 < queries)
            logsumexp[((size_t)sequence * gridDim.x + head) * queries + top + half * 8] =
                softmax.shift[half] * rsqrtf((float)DEPTH) + logf(softmax.sum[half]);
#endif
    }
    rescale_sums();
    out += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
    named_barrier_sync(1 + group, 128);  // all warps have read their queries
    store_lines(accumulator, shared + (row - first) * 128, out, row, 0, queries, DEPTH, OUT_STRIDE);
}
