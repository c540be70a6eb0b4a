// /// opbench
// title     = "wgmma and TMA: the next tile's scores are multiplied during the softmax of the current tile"
// builds_on = "mma"
// mechanism = [
//     "fewer_passes", "compile_time_sizes", "shared_memory_tile", "register_tile", "double_buffer", "tma",
//     "tensor_core", "warp_specialised",
// ]
// product   = "bf16"
// tune      = { BN = [128, 64], TURNS = [1, 0] }
// tile      = { m = 128, n = "DEPTH" }
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.OUT_STRIDE = "out_stride"
// define.STAGES = "4"
// define.STATISTICS = "statistics == 'logsumexp'"
// supports.mask   = ["none", "causal"]
// supports.dtype  = ["bf16"]
// supports.layout = ["heads", "tokens", "qkv"]
// supports.statistics = ["none", "logsumexp"]
// requires  = [
//     "depth in (64, 128)", "batch <= 65535 and heads <= 65535", "queries < 2 ** 24 and keys < 2 ** 24",
//     "out_batch_stride < 2 ** 32",
// ]
// compute_capability = "9.0a"
//
// [tensor_maps.map_q]
// tensor  = "q"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, 128, 1, 1]
//
// [tensor_maps.map_qkv_q]
// tensor  = "qkv"
// dims    = ["depth", "queries", "heads", "batch"]
// strides = ["2 * query_stride", "2 * query_head_stride", "2 * query_batch_stride"]
// box     = [64, 128, 1, 1]
//
// [tensor_maps.map_k]
// tensor  = "k"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, "BN", 1, 1]
//
// [tensor_maps.map_qkv_k]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, "BN", 1, 1]
// offset  = "part_stride"
//
// [tensor_maps.map_v]
// tensor  = "v"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, "BN", 1, 1]
//
// [tensor_maps.map_qkv_v]
// tensor  = "qkv"
// dims    = ["depth", "keys", "kv_heads", "batch"]
// strides = ["2 * key_stride", "2 * key_head_stride", "2 * key_batch_stride"]
// box     = [64, "BN", 1, 1]
// offset  = "2 * part_stride"
//
// [[launch]]
// kernel = "attention_wgmma"
// grid   = ["cdiv(queries, 128)", "heads", "batch"]
// block  = [384]
// shared = "(128 + STAGES * BN) * depth * 2 + STAGES * 16 + 8"
// args   = [
//     "map_q?", "map_k?", "map_v?", "map_qkv_q?", "map_qkv_k?", "map_qkv_v?", "out", "logsumexp?",
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads // kv_heads", "queries", "keys",
// ]
// ///
//
// One thread copies the tiles in the order in which they are used: keys 0, keys 1, values 0, keys 2, values 1, ... Two
// warpgroups compute 64 queries each. A warpgroup issues the scores of the next tile and the average of this tile
// together, and computes the next softmax while the second product still runs. The weights are wgmma's first operand,
// in registers. With TURNS, named barriers make the warpgroups alternate: one multiplies while the other computes
// exponentials. Limit: exponentials, 16 per cycle and multiprocessor, which take half as long as the products. Idea:
// Shah et al., "FlashAttention-3" (2024).

#include <opbench/activations.cuh>
#include <opbench/ring.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int BM = 128, HALVES = DEPTH / 64, SCORES = BN / 2, SUMS = DEPTH / 2;
constexpr int QUERY_BYTES = BM * DEPTH * 2, TILE_BYTES = BN * DEPTH * 2;
constexpr float LOG2_E = 1.44269504f, NONE = -1e30f;
typedef Ring<STAGES, TILE_BYTES> Stages;

// Maxima and sums of weights of this thread's two rows of scores.
struct Softmax {
    float running_maximum[2] = {NONE, NONE}, sum[2] = {}, factor[2];

    // Replace scores by weights; `factor` is what earlier sums and accumulators must be multiplied by.
    __device__ __forceinline__ void operator()(float (&score)[SCORES], float scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_maximum = running_maximum[half];
#pragma unroll
            for (int i = half * 2; i < SCORES; i += 4) new_maximum = fmaxf(new_maximum, fmaxf(score[i], score[i + 1]));
            new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, 1));
            new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, 2));
            factor[half] = power_of_two((running_maximum[half] - new_maximum) * scale);
            running_maximum[half] = new_maximum;
            sum[half] *= factor[half];
            const float shift = new_maximum * scale;
#pragma unroll
            for (int i = half * 2; i < SCORES; i += 4) {
                score[i] = power_of_two(score[i] * scale - shift),
                score[i + 1] = power_of_two(score[i + 1] * scale - shift);
                sum[half] += score[i] + score[i + 1];
            }
        }
    }
};

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// The coordinates of the maps are depth, token, head and sequence, whatever the layout is. out: rows of DEPTH elements,
// OUT_STRIDE elements from one token to the next; logsumexp [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    attention_wgmma(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,
                    const __grid_constant__ TensorMap map_v, unsigned short* __restrict__ out,
#if STATISTICS
                    float* __restrict__ logsumexp,
#endif
                    Strides out_strides, int heads_per_kv_head, int queries, int keys) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), barriers = memory + QUERY_BYTES + Stages::bytes;
    const unsigned query_full = barriers + Stages::barrier_bytes;
    Stages ring(memory + QUERY_BYTES, barriers);
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    // causal: blocks with the most keys start first
    const int first = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM;
    const int causal_offset = keys - queries, key_end = CAUSAL ? min(keys, first + BM + causal_offset) : keys;
    const int steps = (key_end + BN - 1) / BN;
    if (threadIdx.x == 0) {
        ring.init();
        barrier_init(query_full, 1);
        barrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x > 0) return;
        arrive_expect(query_full, QUERY_BYTES);
        for (int half = 0; half < HALVES; ++half)
            load(memory + half * BM * 128, &map_q, query_full, half * 64, first, head, sequence);
        ring.fill(2 * steps, [&](int step, unsigned to, unsigned full) {
            const bool of_keys = step == 0 || step % 2 == 1 && step < 2 * steps - 1;
            const int tile = step == 2 * steps - 1 ? steps - 1 : of_keys ? (step + 1) / 2 : step / 2 - 1;
            for (int half = 0; half < HALVES; ++half)
                load(to + half * BN * 128, of_keys ? &map_k : &map_v, full, half * 64, tile * BN,
                     head / heads_per_kv_head, sequence);
        });
        return;
    }
    registers_up<consumer_registers>();
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const unsigned group_queries = memory + group * 64 * 128;
    const int row = first + group * 64 + warp * 16, top = row + lane / 4;  // the thread's rows: top, top + 8
    const float scale = LOG2_E * rsqrtf((float)DEPTH);
    float score[1][SCORES], accumulator[SUMS];
    unsigned weights[BN / 16][4];
    Softmax softmax;

    auto multiply_keys = [&] {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        const unsigned tile = ring.memory + ring.stage * TILE_BYTES;
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
            multiply_stage<Format::bf16>(score, group_queries + half * BM * 128, tile + half * BN * 128, half > 0);
        wgmma_commit();
        ring.advance();
    };
    auto multiply_values = [&](int add) {
        wait_for(ring.full + 8 * ring.stage, ring.phase);
        const unsigned long long tile = descriptor(ring.memory + ring.stage * TILE_BYTES, 1024, BN * 128);
        wgmma_fence();
#pragma unroll
        for (int slice = 0; slice < BN / 16; ++slice)
            wgmma<Format::bf16, true>(accumulator, weights[slice], tile + slice * 128, add || slice > 0);
        wgmma_commit();
        ring.advance();
    };
    auto mask_scores = [&](int step) {
        if ((step + 1) * BN <= keys && (!CAUSAL || (step + 1) * BN <= first + causal_offset + 1)) return;
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            const int key = step * BN + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (key >= keys || CAUSAL && key > top + i / 2 % 2 * 8 + causal_offset)
                score[0][i] = __int_as_float(0xff800000);
        }
    };
    auto round_weights = [&] {
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) weights[i / 4][i % 4] = pack_bf16(score[0][2 * i], score[0][2 * i + 1]);
    };
    // The warpgroups alternate at issuing products: a warpgroup waits for its turn at barrier 1 + group.
    auto begin_turn = [&] {
        if constexpr (TURNS) named_barrier_sync(1 + group, 256);
    };
    auto end_turn = [&] {
        if constexpr (TURNS) named_barrier_arrive(2 - group, 256);
    };

    if (TURNS && group == 1) named_barrier_arrive(1, 256);  // group 0 has the first turn
    wait_for(query_full, 0);
    begin_turn();
    unsigned first_stage = ring.stage;
    multiply_keys();
    end_turn();
    wgmma_wait<0>();
    ring.release(first_stage);
    mask_scores(0);
    softmax(score[0], scale);
    round_weights();
    for (int step = 1; step < steps; ++step) {
        begin_turn();
        const unsigned keys_stage = ring.stage;
        multiply_keys();
        const unsigned values_stage = ring.stage;
        multiply_values(step > 1);
        end_turn();
        wgmma_wait<1>();
        ring.release(keys_stage);
        mask_scores(step);
        softmax(score[0], scale);
        wgmma_wait<0>();
        ring.release(values_stage);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) accumulator[i] *= softmax.factor[i / 2 % 2];
        round_weights();
    }
    begin_turn();
    multiply_values(steps > 1);
    if (group == 0) end_turn();
    wgmma_wait<0>();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float row_sum = softmax.sum[half];
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
        factor[half] = 1.0f / row_sum;
#if STATISTICS
        if (lane % 4 == 0 && top + half * 8 < queries)
            logsumexp[((size_t)sequence * gridDim.y + head) * queries + top + half * 8] =
                softmax.running_maximum[half] * rsqrtf((float)DEPTH) + logf(row_sum);
#endif
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) accumulator[i] *= factor[i / 2 % 2];
    out += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
    store_pairs(accumulator, out, row, 0, queries, OUT_STRIDE);
}
