// /// opbench
// title     = "tensor cores (mma.sync): weights and their gradients stay in registers for the next product"
// builds_on = "tiled"
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_passes", "compile_time_sizes", "shared_memory_tile",
//     "register_tile", "double_buffer", "async_copy", "bank_conflict_free", "tensor_core",
// ]
// product   = "bf16"
// tune      = { BM = [64, 128], BN = [64, 32] }
// define.CAUSAL = "mask == 'causal'"
// define.DEPTH  = "depth"
// define.QUERY_STRIDE = "query_stride"
// define.KEY_STRIDE   = "key_stride"
// define.OUT_STRIDE   = "out_stride"
// define.PART_STRIDE  = "part_stride"
// define.SHARE        = "heads // kv_heads"
// define.PER_SM       = "2 if BM == 64 else 1"
// supports  = { mask = ["none", "causal"], dtype = ["bf16"], layout = ["heads", "tokens", "qkv"] }
// requires  = [
//     "depth in (64, 128)", "batch <= 65535 and heads <= 65535", "queries + BN < 2 ** 24 and keys + BM < 2 ** 24",
//     "query_batch_stride < 2 ** 32 and key_batch_stride < 2 ** 32", "BN == 32 or depth == 64",
// ]
// workspace = { delta = "batch * heads * queries" }
// compute_capability = "8.0"
//
// [[launch]]
// kernel = "attention_backward_delta"
// grid   = ["cdiv(queries, 32)", "heads", "batch"]
// block  = [8, 32]
// args   = [
//     "out", "dout", "delta", { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] }, "queries",
// ]
//
// [[launch]]
// kernel = "attention_backward_keys"
// grid   = ["cdiv(keys, BM)", "kv_heads", "batch"]
// block  = ["2 * BM"]
// shared = "(2 * BM + 4 * BN) * depth * 2 + 4 * BN * 4"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "dout", "logsumexp", "delta", "dk?", "dv?", "dqkv?", "dqkv?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "heads", "queries", "keys",
// ]
//
// [[launch]]
// kernel = "attention_backward_queries"
// grid   = ["cdiv(queries, BM)", "heads", "batch"]
// block  = ["2 * BM"]
// shared = "(2 * BM + 4 * BN) * depth * 2"
// args   = [
//     "q?", "k?", "v?", "qkv?", "qkv?", "qkv?", "dout", "logsumexp", "delta", "dq?", "dqkv?",
//     { struct = [{ u32 = "query_batch_stride" }, { u32 = "query_head_stride" }] },
//     { struct = [{ u32 = "key_batch_stride" }, { u32 = "key_head_stride" }] },
//     { struct = [{ u32 = "out_batch_stride" }, { u32 = "query_head_stride" }] },
//     "queries", "keys",
// ]
// ///
//
// A warp computes 16 keys (or queries) and transposed (or plain) tiles of weights and of their gradients ("slopes").
// Their sums are in registers in the layout of the first operand of the next product, so neither passes through shared
// memory. The same tile of queries is the second operand of two products: by rows for the scores, transposed by
// ldmatrix for dk. While a tile is used, cp.async loads the next one. Exponentials are computed as powers of two; the
// factor log2(e) is part of the scale. Limit: mma.sync reads its operands through registers, and weights and slopes are
// computed twice, once for dk and dv and once for dq. Idea: Dao, "FlashAttention-2" (2023).

#include <opbench/activations.cuh>
#include <opbench/bf16.cuh>
#include <opbench/mma.cuh>
#include <opbench/tile.cuh>
using namespace opbench;

constexpr int THREADS = 2 * BM, SLICES = DEPTH / 16, TILES = BN / 8;
constexpr int OWN_BYTES = BM * DEPTH * 2, TILE_BYTES = BN * DEPTH * 2;
constexpr float LOG2_E = 1.44269504f;

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

// Copy one float to shared memory without a register; if `bytes` is 0, write zero and read nothing.
__device__ __forceinline__ void copy_element(unsigned to, const float* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// product = the warp's 16 rows of a tile of BM rows, times all rows of a tile of BN rows
__device__ __forceinline__ void multiply_rows(float (&product)[TILES][4], unsigned own, unsigned tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) product[i][e] = 0.0f;
#pragma unroll
    for (int slice = 0; slice < SLICES; ++slice) {
        unsigned a[4];
        load_matrices(a, own + place<BM>(warp * 16 + lane % 16, slice * 2 + lane / 16));
#pragma unroll
        for (int pair = 0; pair < TILES / 2; ++pair) {
            unsigned b[4];
            load_matrices(b, tile + place<BN>(pair * 16 + lane % 8 + lane / 16 * 8, slice * 2 + lane / 8 % 2));
            mma_bf16(product[pair * 2], a, b[0], b[1]);
            mma_bf16(product[pair * 2 + 1], a, b[2], b[3]);
        }
    }
}

// sum += factors (16 rows of BN, rounded to bf16) times a tile of BN rows
__device__ __forceinline__ void add_product(float (&sum)[DEPTH / 8][4], const float (&factors)[TILES][4],
                                            unsigned tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int slice = 0; slice < BN / 16; ++slice) {
        const unsigned a[4] = {pack_bf16(factors[slice * 2][0], factors[slice * 2][1]),
                               pack_bf16(factors[slice * 2][2], factors[slice * 2][3]),
                               pack_bf16(factors[slice * 2 + 1][0], factors[slice * 2 + 1][1]),
                               pack_bf16(factors[slice * 2 + 1][2], factors[slice * 2 + 1][3])};
#pragma unroll
        for (int pair = 0; pair < DEPTH / 16; ++pair) {
            unsigned b[4];
            load_matrices_transposed(b, tile + place<BN>(slice * 16 + lane % 16, pair * 2 + lane / 16));
            mma_bf16(sum[pair * 2], a, b[0], b[1]);
            mma_bf16(sum[pair * 2 + 1], a, b[2], b[3]);
        }
    }
}

// Store this thread's rows, `top` and `top` + 8, multiplied by a factor; rows from `end` on do not exist.
template <int stride>
__device__ __forceinline__ void store_rows(unsigned short* to, const float (&sum)[DEPTH / 8][4], int top, int end,
                                           float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = top + half * 8;
        if (row >= end) continue;
#pragma unroll
        for (int d = 0; d < DEPTH / 8; ++d)
            *reinterpret_cast<unsigned*>(to + (size_t)row * stride + d * 8 + threadIdx.x % 4 * 2) =
                pack_bf16(sum[d][half * 2] * factor, sum[d][half * 2 + 1] * factor);
    }
}

// Elements from one sequence, and from one head, to the next.
struct Strides { unsigned batch, head; };

// out, dout: rows of DEPTH elements, OUT_STRIDE elements from one token to the next; delta [batch][heads][queries]; 8
// threads compute a row
extern "C" __global__ void __launch_bounds__(256)
    attention_backward_delta(const unsigned short* __restrict__ out, const unsigned short* __restrict__ dout,
                             float* __restrict__ delta, Strides strides, int queries) {
    const int query = blockIdx.x * 32 + threadIdx.y;
    const size_t at = (size_t)blockIdx.z * strides.batch + (size_t)blockIdx.y * strides.head +
                      (size_t)(query < queries ? query : 0) * OUT_STRIDE + threadIdx.x * 8;
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < DEPTH; d += 64) {
        const uint4 a = *reinterpret_cast<const uint4*>(out + at + d),
                    b = *reinterpret_cast<const uint4*>(dout + at + d);
        const unsigned left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum += __uint_as_float(left[i] << 16) * __uint_as_float(right[i] << 16);
            sum += __uint_as_float(left[i] & 0xffff0000u) * __uint_as_float(right[i] & 0xffff0000u);
        }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0 && query < queries)
        delta[((size_t)blockIdx.z * gridDim.y + blockIdx.y) * queries + query] = sum;
}

// All tensors consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q), KEY_STRIDE (k,
// v, dk, dv) or OUT_STRIDE (dout) elements. In one packed array, the keys of a token begin PART_STRIDE elements after
// its queries, and its values PART_STRIDE elements after its keys. logsumexp, delta [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    attention_backward_keys(const unsigned short* __restrict__ q, const unsigned short* __restrict__ k,
                            const unsigned short* __restrict__ v, const unsigned short* __restrict__ dout,
                            const float* __restrict__ logsumexp, const float* __restrict__ delta,
                            unsigned short* __restrict__ dk, unsigned short* __restrict__ dv, Strides q_strides,
                            Strides k_strides, Strides out_strides, int heads, int queries, int keys) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned key_tile = (unsigned)__cvta_generic_to_shared(shared), value_tile = key_tile + OWN_BYTES;
    const unsigned stages = value_tile + OWN_BYTES;
    const unsigned statistics = stages + 4 * TILE_BYTES;  // floats [2][2][BN]
    const float* const statistic_rows = reinterpret_cast<const float*>(shared + 2 * OWN_BYTES + 4 * TILE_BYTES);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned sequence = blockIdx.z, kv_head = blockIdx.y;
    const int first = blockIdx.x * BM, causal_offset = keys - queries;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)kv_head * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    dk += kv_offset + PART_STRIDE, dv += kv_offset + 2 * PART_STRIDE;
    q += (size_t)sequence * q_strides.batch + (size_t)kv_head * SHARE * q_strides.head;
    dout += (size_t)sequence * out_strides.batch + (size_t)kv_head * SHARE * out_strides.head;
    const size_t rows = ((size_t)sequence * heads + kv_head * SHARE) * queries;
    // the first tile that has a query to which a key of this block is visible
    const int start = CAUSAL ? max(0, first - causal_offset) / BN : 0;
    const int per_head = (queries + BN - 1) / BN - start, steps = per_head * SHARE;

    // Load the queries of a step, the gradients of their outputs, and their statistics: all tiles of one head, then
    // those of the next head.
    auto fill = [&](int step) {
        const int head = step / per_head, query = (start + step % per_head) * BN, stage = step % 2;
        const unsigned to = stages + stage * 2 * TILE_BYTES;
        copy_rows<BN, QUERY_STRIDE>(to, q + (size_t)head * q_strides.head + (size_t)query * QUERY_STRIDE,
                                    queries - query);
        copy_rows<BN, OUT_STRIDE>(to + TILE_BYTES, dout + (size_t)head * out_strides.head + (size_t)query * OUT_STRIDE,
                                  queries - query);
        if (threadIdx.x < 2 * BN) {  // first logsumexp, then delta
            const int at = threadIdx.x % BN, inside = query + at < queries;
            const float* from = (threadIdx.x < BN ? logsumexp : delta) + rows + (size_t)head * queries;
            copy_element(statistics + (stage * 2 * BN + threadIdx.x) * 4, from + (inside ? query + at : 0), inside * 4);
        }
        commit();
    };
    copy_rows<BM, KEY_STRIDE>(key_tile, k + (size_t)first * KEY_STRIDE, keys - first);
    copy_rows<BM, KEY_STRIDE>(value_tile, v + (size_t)first * KEY_STRIDE, keys - first);
    if (steps > 0) fill(0);

    const float scale = rsqrtf((float)DEPTH);
    const int top = first + warp * 16 + lane / 4;  // the thread's keys are top and top + 8
    float of_key[DEPTH / 8][4] = {}, of_value[DEPTH / 8][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        wait<0>();
        __syncthreads();  // this tile has arrived, and all threads have read the previous tile
        if (step + 1 < steps) fill(step + 1);
        const unsigned query_tile = stages + step % 2 * 2 * TILE_BYTES, gradient_tile = query_tile + TILE_BYTES;
        const float* const row = statistic_rows + step % 2 * 2 * BN;
        const int query = (start + step % per_head) * BN;
        float weight[TILES][4];
        multiply_rows(weight, key_tile, query_tile);
        const bool partial = query + BN > queries || CAUSAL && first + BM > query + causal_offset + 1;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            float2 statistic = *reinterpret_cast<const float2*>(row + tile * 8 + lane % 4 * 2);
            statistic.x *= LOG2_E, statistic.y *= LOG2_E;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float value =
                    power_of_two(weight[tile][e] * (scale * LOG2_E) - (e % 2 ? statistic.y : statistic.x));
                const int column = query + tile * 8 + lane % 4 * 2 + e % 2;
                const bool hidden = column >= queries || CAUSAL && top + e / 2 * 8 > column + causal_offset;
                weight[tile][e] = partial && hidden ? 0.0f : value;
            }
        }
        add_product(of_value, weight, gradient_tile);
        float slope[TILES][4];
        multiply_rows(slope, value_tile, gradient_tile);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const float2 own_delta = *reinterpret_cast<const float2*>(row + BN + tile * 8 + lane % 4 * 2);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                slope[tile][e] = weight[tile][e] * (slope[tile][e] - (e % 2 ? own_delta.y : own_delta.x));
        }
        add_product(of_key, slope, query_tile);
    }
    wait<0>();
    store_rows<KEY_STRIDE>(dk, of_key, top, keys, scale);
    store_rows<KEY_STRIDE>(dv, of_value, top, keys, 1.0f);
}

// All tensors consist of rows of DEPTH elements. From one token to the next there are QUERY_STRIDE (q, dq), KEY_STRIDE
// (k and v) or OUT_STRIDE (dout) elements. logsumexp, delta [batch][heads][queries]
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    attention_backward_queries(const unsigned short* __restrict__ q, const unsigned short* __restrict__ k,
                               const unsigned short* __restrict__ v, const unsigned short* __restrict__ dout,
                               const float* __restrict__ logsumexp, const float* __restrict__ delta,
                               unsigned short* __restrict__ dq, Strides q_strides, Strides k_strides,
                               Strides out_strides, int queries, int keys) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned query_tile = (unsigned)__cvta_generic_to_shared(shared), gradient_tile = query_tile + OWN_BYTES;
    const unsigned stages = gradient_tile + OWN_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned sequence = blockIdx.z, head = blockIdx.y;
    // causal: blocks with the most keys start first
    const int first = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM;
    const size_t q_offset = (size_t)sequence * q_strides.batch + (size_t)head * q_strides.head;
    q += q_offset, dq += q_offset;
    dout += (size_t)sequence * out_strides.batch + (size_t)head * out_strides.head;
    const size_t kv_offset = (size_t)sequence * k_strides.batch + (size_t)(head / SHARE) * k_strides.head;
    k += kv_offset + PART_STRIDE, v += kv_offset + 2 * PART_STRIDE;
    const int causal_offset = keys - queries, key_end = CAUSAL ? min(keys, first + BM + causal_offset) : keys;
    const int steps = (key_end + BN - 1) / BN;

    auto fill = [&](int step) {
        const unsigned to = stages + step % 2 * 2 * TILE_BYTES;
        copy_rows<BN, KEY_STRIDE>(to, k + (size_t)step * BN * KEY_STRIDE, keys - step * BN);
        copy_rows<BN, KEY_STRIDE>(to + TILE_BYTES, v + (size_t)step * BN * KEY_STRIDE, keys - step * BN);
        commit();
    };
    copy_rows<BM, QUERY_STRIDE>(query_tile, q + (size_t)first * QUERY_STRIDE, queries - first);
    copy_rows<BM, OUT_STRIDE>(gradient_tile, dout + (size_t)first * OUT_STRIDE, queries - first);
    fill(0);

    const float scale = rsqrtf((float)DEPTH);
    const int top = first + warp * 16 + lane / 4;  // the thread's queries are top and top + 8
    const size_t rows = ((size_t)sequence * gridDim.y + head) * queries;
    float statistic[2], own_delta[2], sum[DEPTH / 8][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int query = min(top + half * 8, queries - 1);
        statistic[half] = logsumexp[rows + query] * LOG2_E;
        own_delta[half] = delta[rows + query];
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        wait<0>();
        __syncthreads();  // this tile has arrived, and all threads have read the previous tile
        if (step + 1 < steps) fill(step + 1);
        const unsigned key_tile = stages + step % 2 * 2 * TILE_BYTES, value_tile = key_tile + TILE_BYTES;
        float weight[TILES][4], slope[TILES][4];
        multiply_rows(weight, query_tile, key_tile);
        multiply_rows(slope, gradient_tile, value_tile);
        const int start = step * BN;
        const bool partial = start + BN > keys || CAUSAL && start + BN > first + causal_offset + 1;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float value = power_of_two(weight[tile][e] * (scale * LOG2_E) - statistic[e / 2]);
                const int key = start + tile * 8 + lane % 4 * 2 + e % 2;
                const bool hidden = key >= keys || CAUSAL && key > top + e / 2 * 8 + causal_offset;
                slope[tile][e] = partial && hidden ? 0.0f : value * (slope[tile][e] - own_delta[e / 2]);
            }
        add_product(sum, slope, key_tile);
    }
    store_rows<QUERY_STRIDE>(dq, sum, top, queries, scale);
}
