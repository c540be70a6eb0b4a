// /// opbench
// title     = "tensor cores (mma.sync): the scores stay in registers as operands of the second product"
// builds_on = "tiled"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile",
//     "register_tile", "double_buffer", "async_copy", "bank_conflict_free", "tensor_core",
// ]
// product   = "bf16"
// tune      = { BM = [128, 64], BN = [64, 128] }
// tile      = { m = "BM", n = "DEPTH" }
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.QUERY_STRIDE = "query_stride"
// define.KEY_STRIDE   = "key_stride"
// define.OUT_STRIDE   = "out_stride"
// define.PART_STRIDE  = "part_stride"
// define.PER_SM       = "2 if BM == 64 else 1"
// define.STATISTICS   = "statistics == 'logsumexp'"
// supports.mask   = ["none", "causal"]
// supports.dtype  = ["bf16"]
// supports.layout = ["heads", "tokens", "qkv"]
// supports.statistics = ["none", "logsumexp"]
// requires  = [
//     "depth in (64, 128)", "batch <= 65535 and heads <= 65535", "queries + BM < 2 ** 24 and keys + BN < 2 ** 24",
//     "BN == 64 or depth == 64", "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32",
// ]
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "attention_mma"
// grid   = ["cdiv(queries, BM)", "heads", "batch"]
// block  = ["2 * BM"]
// shared = "(BM + 4 * BN) * depth * 2"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "out", "logsumexp?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads // kv_heads", "queries", "keys",
// ]
// ///
//
// A warp computes 16 queries, whose fragments it loads once. The sums of the first product are in the registers of a
// warp in the layout that the second product needs: two neighbouring tiles of scores, rounded to bf16, are one
// fragment. So weights never pass through shared memory, and the maximum of a row takes two shuffles. While a tile of
// keys and values is used, cp.async loads the next one. Exponentials are computed as powers of two; the factor log2(e)
// is part of the scale. Limit: mma.sync, which reads its operands through registers, and exponentials that wait for
// products. Idea: Dao, "FlashAttention-2" (2023).

#include <opbench/activations.cuh>
#include <opbench/bf16.cuh>
#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
using namespace opbench;

constexpr int THREADS = 2 * BM, SLICES = DEPTH / 16, TILES = BN / 8;
constexpr int QUERY_BYTES = BM * DEPTH * 2, STAGE_BYTES = 2 * BN * DEPTH * 2;
constexpr float LOG2_E = 1.44269504f, NONE = -1e30f;

// Return the offset of a chunk of 8 elements of a row. Every 64 elements of depth form a tile of `rows` rows of 128
// bytes.
template <int rows>
__device__ __forceinline__ int place(int row, int chunk) {
    return chunk / chunks * rows * row_bytes + swizzled_offset(row, chunk % chunks);
}

// Load rows of DEPTH elements, `stride` elements apart, into shared memory; rows from `left` on become zeros.
template <int rows, int stride>
__device__ __forceinline__ void copy_rows(unsigned to, const unsigned short* from, int left) {
    constexpr int per_row = DEPTH / 8;
#pragma unroll
    for (int i = 0; i < rows * per_row / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, row = at / per_row, chunk = at % per_row;
        const int inside = row < left;
        copy_chunk(to + place<rows>(row, chunk), from + (size_t)(inside ? row : 0) * stride + chunk * 8, inside * 16);
    }
}

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// q, k, v and out consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q), KEY_STRIDE
// (k and v) or OUT_STRIDE (out) elements. In one packed array, the keys of a token begin PART_STRIDE elements after its
// queries, and its values PART_STRIDE elements after its keys. logsumexp [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    attention_mma(const unsigned short* __restrict__ q, const unsigned short* __restrict__ k,
                  const unsigned short* __restrict__ v, unsigned short* __restrict__ out,
#if STATISTICS
                  float* __restrict__ logsumexp,
#endif
                  Strides q_strides, Strides k_strides, Strides out_strides, int heads_per_kv_head, int queries,
                  int keys) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned memory = (unsigned)__cvta_generic_to_shared(shared), stages = memory + QUERY_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    // causal: blocks with the most keys start first
    const int first = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM;
    q += (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head + (size_t)first * QUERY_STRIDE;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)(head / heads_per_kv_head) * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    out += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
    const int causal_offset = keys - queries, key_end = CAUSAL ? min(keys, first + BM + causal_offset) : keys;
    const int steps = (key_end + BN - 1) / BN;

    auto fill = [&](int step) {
        const unsigned to = stages + step % 2 * STAGE_BYTES;
        copy_rows<BN, KEY_STRIDE>(to, k + (size_t)step * BN * KEY_STRIDE, keys - step * BN);
        copy_rows<BN, KEY_STRIDE>(to + BN * DEPTH * 2, v + (size_t)step * BN * KEY_STRIDE, keys - step * BN);
        commit();
    };
    copy_rows<BM, QUERY_STRIDE>(memory, q, queries - first);
    fill(0);
    wait<0>();
    __syncthreads();
    unsigned query[SLICES][4];
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice)
        load_matrices(query[slice], memory + place<BM>(warp * 16 + lane % 16, slice * 2 + lane / 16));

    const float scale = LOG2_E * rsqrtf((float)DEPTH);
    const int top = first + warp * 16 + lane / 4;  // the thread's rows are top and top + 8
    float accumulator[DEPTH / 8][4] = {}, running_maximum[2] = {NONE, NONE}, sum[2] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        const unsigned key_tile = stages + step % 2 * STAGE_BYTES, value_tile = key_tile + BN * DEPTH * 2;
        if (step > 0) {
            wait<0>();
            __syncthreads();  // this tile has arrived, and all threads have read the previous tile
        }
        if (step + 1 < steps) fill(step + 1);
        float score[TILES][4] = {};
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice)
#pragma unroll
            for (int pair = 0; pair < TILES / 2; ++pair) {
                unsigned key[4];
                load_matrices(key,
                              key_tile + place<BN>(pair * 16 + lane % 8 + lane / 16 * 8, slice * 2 + lane / 8 % 2));
                mma_bf16(score[pair * 2], query[slice], key[0], key[1]);
                mma_bf16(score[pair * 2 + 1], query[slice], key[2], key[3]);
            }
        const int start = step * BN;
        if (start + BN > keys || CAUSAL && start + BN > first + causal_offset + 1) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int key = start + tile * 8 + lane % 4 * 2 + e % 2;
                    if (key >= keys || CAUSAL && key > top + e / 2 * 8 + causal_offset)
                        score[tile][e] = __int_as_float(0xff800000);
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_maximum = running_maximum[half];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                new_maximum = fmaxf(new_maximum, fmaxf(score[tile][half * 2], score[tile][half * 2 + 1]));
            new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, 1));
            new_maximum = fmaxf(new_maximum, __shfl_xor_sync(0xffffffffu, new_maximum, 2));
            const float factor = power_of_two((running_maximum[half] - new_maximum) * scale),
                        shift = new_maximum * scale;
            running_maximum[half] = new_maximum;
            sum[half] *= factor;
#pragma unroll
            for (int d = 0; d < DEPTH / 8; ++d)
                accumulator[d][half * 2] *= factor, accumulator[d][half * 2 + 1] *= factor;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; ++e) {
                    score[tile][e] = power_of_two(score[tile][e] * scale - shift);
                    sum[half] += score[tile][e];
                }
        }
#pragma unroll
        for (int slice = 0; slice < BN / 16; ++slice) {
            const unsigned weights[4] = {pack_bf16(score[slice * 2][0], score[slice * 2][1]),
                                         pack_bf16(score[slice * 2][2], score[slice * 2][3]),
                                         pack_bf16(score[slice * 2 + 1][0], score[slice * 2 + 1][1]),
                                         pack_bf16(score[slice * 2 + 1][2], score[slice * 2 + 1][3])};
#pragma unroll
            for (int pair = 0; pair < DEPTH / 16; ++pair) {
                unsigned value[4];
                load_matrices_transposed(value, value_tile + place<BN>(slice * 16 + lane % 16, pair * 2 + lane / 16));
                mma_bf16(accumulator[pair * 2], weights, value[0], value[1]);
                mma_bf16(accumulator[pair * 2 + 1], weights, value[2], value[3]);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float row_sum = sum[half];
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 1);
        row_sum += __shfl_xor_sync(0xffffffffu, row_sum, 2);
        const float factor = 1.0f / row_sum;
        const int row = top + half * 8;
        if (row >= queries) continue;
#if STATISTICS
        if (lane % 4 == 0)
            logsumexp[((size_t)sequence * gridDim.y + head) * queries + row] =
                running_maximum[half] * rsqrtf((float)DEPTH) + logf(row_sum);
#endif
#pragma unroll
        for (int d = 0; d < DEPTH / 8; ++d)
            *reinterpret_cast<unsigned*>(out + (size_t)row * OUT_STRIDE + d * 8 + lane % 4 * 2) =
                pack_bf16(accumulator[d][half * 2] * factor, accumulator[d][half * 2 + 1] * factor);
    }
}
