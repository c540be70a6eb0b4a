// Multiply few rows by a layer's weights: the weights are the rows of wgmma and are streamed; the batch is its columns.
#pragma once
#include <opbench/sums.cuh>
#include <opbench/wgmma.cuh>

namespace opbench {

// Blocks have 160 threads; the `split` blocks of a cluster divide the depth. Weights are [outputs][depth], or
// [depth][outputs] with `by_m`, where the map's box is 64 x 64; without `by_m` the box is 128 bytes x `rows`.
template <Format operand, int batch, int tiles, int split, int stages, bool by_m = false>
struct FewRows {
    typedef typename Stored<operand>::T T;
    static constexpr int rows = 64 * tiles, depth_step = 128 / sizeof(T), weight_bytes = rows * 128;
    static constexpr int stage_bytes = weight_bytes + batch * 128;
    static constexpr int share = batch / split,
                         count = share * rows / 128;       // columns per block; outputs per thread
    static constexpr int pitch = rows + 4;                 // columns that are 4 apart use other banks
    static constexpr int share_bytes = share * pitch * 4;  // bytes that a block receives from another
    static constexpr int receive_offset = split > 1 ? split * share_bytes : 0;  // after the block's own sums
    static_assert(receive_offset + split * share_bytes <= stages * stage_bytes, "sums meet where the stages were");

    __device__ __forceinline__ static T to_operand(float x) {
        if constexpr (sizeof(T) == 2)
            return (T)pack_bf16(x, 0.0f);
        else
            return x;
    }
    __device__ __forceinline__ static int first_output() { return (int)blockIdx.x / split * rows; }
    // The output that this thread finishes for all of its columns.
    __device__ __forceinline__ static int output_index() { return first_output() + threadIdx.x % rows; }

    // Call finish(sum, load_operand(column, output_index()), column) for each column of the batch; the loads of
    // load_operand() overlap those of the weights.
    template <class LoadOperand, class Finish>
    __device__ __forceinline__ static void multiply(unsigned char* shared, const TensorMap* map_weights,
                                                    const TensorMap* map_batch, int m, int outputs, int depth,
                                                    const LoadOperand& load_operand, const Finish& finish) {
        const unsigned memory = shared_address(shared), full = memory + stages * stage_bytes, empty = full + 8 * stages;
        const unsigned sums_barrier = empty + 8 * stages, receive_buffer = memory + receive_offset;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int rank = split > 1 ? (int)cluster_rank() : 0;
        const int all = (depth + depth_step - 1) / depth_step, begin = all * rank / split;
        const int steps = all * (rank + 1) / split - begin, initial_steps = min(steps, stages);
        // weights that are requested first: with more, the first part of the batch would have to wait
        const int prefetched_steps = min(initial_steps, 4);
        const auto fetch_weights = [&](int step) {
            const unsigned to = memory + step % stages * stage_bytes, barrier = full + 8 * (step % stages);
            arrive_expect(barrier, stage_bytes);
            if constexpr (!by_m) load(to, map_weights, barrier, (begin + step) * depth_step, first_output());
#pragma unroll
            for (int i = 0; i < (by_m ? tiles : 0); ++i)
                load(to + i * 8192, map_weights, barrier, first_output() + i * 64, (begin + step) * depth_step);
        };
        const auto fetch_batch = [&](int step) {
            const unsigned to = memory + step % stages * stage_bytes + weight_bytes;
            load(to, map_batch, full + 8 * (step % stages), (begin + step) * depth_step, 0);
        };
        if (threadIdx.x == 128) {
            prefetch_map(map_batch);
            for (int stage = 0; stage < stages; ++stage)
                barrier_init(full + 8 * stage, 1), barrier_init(empty + 8 * stage, 1);
            barrier_init(sums_barrier, 1);
            barrier_init_fence();
            for (int step = 0; step < prefetched_steps; ++step) fetch_weights(step);
        }
        __syncthreads();
        const int columns = max(0, min(share, m - rank * share));  // columns of this block's share that exist
        const int column0 = threadIdx.x / rows;
        const bool has_output = warp < 4 && output_index() < outputs;
        float operands[count];
        const auto load_operands = [&] {
#pragma unroll
            for (int i = 0; i < count; ++i) {
                const int column = column0 + i * (128 / rows);
                operands[i] =
                    has_output && column < columns ? load_operand(rank * share + column, output_index()) : 0.0f;
            }
        };
        constexpr bool load_before_products = count + tiles * batch / 2 <= 160;  // if there are enough registers
        if constexpr (load_before_products) load_operands();
        float sum[tiles][batch / 2] = {};
        if (threadIdx.x == 128) {
            wait_for_launches_before();
            let_next_launch_start();
            for (int step = 0; step < prefetched_steps; ++step) fetch_batch(step);
            for (int step = prefetched_steps; step < initial_steps; ++step) fetch_weights(step), fetch_batch(step);
            for (int step = initial_steps; step < steps; ++step) {
                wait_for(empty + 8 * (step % stages), (step / stages - 1) % 2);
                fetch_weights(step);
                fetch_batch(step);
            }
        } else if (warp < 4) {
            for (int step = 0; step < steps; ++step) {
                const unsigned stage = memory + step % stages * stage_bytes;
                wait_for(full + 8 * (step % stages), step / stages % 2);
                wgmma_fence();
                if constexpr (!by_m) {
                    multiply_stage<operand>(sum, stage, stage + weight_bytes, step > 0);
                } else {
#pragma unroll
                    for (int i = 0; i < 4 * tiles; ++i)  // 16 elements of the depth per tile
                        wgmma<operand, true>(sum[i % tiles], descriptor(stage + i % tiles * 8192) + i / tiles * 128,
                                             descriptor(stage + weight_bytes) + i / tiles * 2, step > 0 || i >= tiles);
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (threadIdx.x == 0 && step > 0) arrive(empty + 8 * ((step - 1) % stages));
            }
            wgmma_wait<0>();
        }
        __syncwarp();
        if (warp < 4) named_barrier_sync(1, 128);  // all stages of this block have been read
        if constexpr (split > 1) cluster_arrive();
        if (warp < 4) {  // store to [column][row], so that each block's share is contiguous
            float* const block_sums = reinterpret_cast<float*>(shared);
#pragma unroll
            for (int i = 0; i < tiles * batch / 2; ++i) {
                const int at = i % (batch / 2), row = i / (batch / 2) * 64 + warp * 16 + lane / 4 + at / 2 % 2 * 8;
                const int column = at / 4 * 8 + lane % 4 * 2 + at % 2;
                block_sums[column * pitch + row] = sum[i / (batch / 2)][at];
            }
        }
        fence_async();
        __syncwarp();
        if constexpr (split > 1) cluster_wait();  // the stages of the other blocks have been read, too
        __syncthreads();
        if (split > 1 && threadIdx.x == 0) {
            if (columns > 0) arrive_expect(sums_barrier, (split - 1) * columns * pitch * 4);
            for (int other = 1; other < split; ++other) {
                const int to = (rank + other) % split, count = min(share, m - to * share);
                if (count > 0)
                    send(address_in(receive_buffer + rank * share_bytes, to), memory + to * share_bytes,
                         count * pitch * 4, address_in(sums_barrier, to));
            }
        }
        if constexpr (!load_before_products) load_operands();
        if (split > 1 && columns > 0) wait_for(sums_barrier, 0);
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int column = column0 + i * (128 / rows);
            if (!has_output || column >= columns) continue;
            float total = 0.0f;
#pragma unroll
            for (int from = 0; from < split; ++from) {
                const unsigned char* sums = shared + from * share_bytes + (from == rank ? 0 : receive_offset);
                total += reinterpret_cast<const float*>(sums)[column * pitch + threadIdx.x % rows];
            }
            finish(total, operands[i], rank * share + column);
        }
        if constexpr (split > 1) cluster_sync();  // the other blocks have received the sums
    }
};

}  // namespace opbench
