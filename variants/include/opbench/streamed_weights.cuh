// A few rows times a layer's weights with float32 or TF32 accuracy, limited by the bytes of the weights. Weights are
// read from DRAM once, as floats; a warpgroup of the block splits them (split_ring.cuh) for the two that multiply.
#pragma once
#include <opbench/split_ring.cuh>
#include <opbench/stream_k.cuh>

namespace opbench {

// rows [m][depth] in f16 planes, an exponent per row, times float weights [n][depth], or [depth][n] with `by_n`. The
// map of the rows has boxes of 64 x 128 x planes, that of the weights 64 x (by_n ? 64 : 128), without a swizzle.
template <int planes, bool by_n>
struct StreamedWeights {
    typedef FloatTile<128, 64> Weights;  // 128 columns x 64 of the depth; by n: twice 64 columns x 64 of the depth
    static constexpr int rows_plane = 128 * 128, rows_bytes = planes * rows_plane;
    static constexpr int stage_bytes = rows_bytes + planes * Weights::plane_bytes;
    typedef SplitRing<5 - planes, Weights::bytes, 4 - planes, stage_bytes, 1, 2, true> Ring;

    // For a block of 384 threads, whose launch may be programmatic; its parts of the result are stored in `parts`.
    __device__ __forceinline__ static void multiply(unsigned char* shared, const TensorMap* map_rows,
                                                    const TensorMap* map_weights, const int* exponents, float* parts,
                                                    const StreamK& share, int m) {
        Ring ring(shared);
        if (threadIdx.x == 0) ring.init();
        __syncthreads();
        let_next_launch_start();
        if (threadIdx.x < 128) {
            const int first = share.begin(blockIdx.x), steps = share.begin(blockIdx.x + 1) - first;
            struct Place {
                int tile, step;
                __device__ __forceinline__ void advance(int steps) {
                    if (++step == steps) step = 0, ++tile;
                }
            } next = {first / share.steps, first % share.steps}, now = next;  // one for weights, one for rows
            ring.produce(
                steps,
                [&](unsigned to, unsigned full) {
                    const int column = share.column(next.tile), depth = next.step * 64;
                    if constexpr (by_n) {
                        load(to, map_weights, full, column, depth);
                        load(to + Weights::bytes / 2, map_weights, full, column + 64, depth);
                    } else {
                        load(to, map_weights, full, depth, column);
                    }
                    next.advance(share.steps);
                },
                [](const unsigned char* floats, unsigned (&largest_magnitude)[1]) {
                    largest_magnitude[0] = Weights::largest_magnitude(floats);
                },
                [&](const unsigned char* floats, unsigned char* stage, unsigned full, const int (&e)[1]) {
                    if (threadIdx.x == 0) {
                        wait_for_launches_before();  // a previous launch writes the rows; no launch writes the weights
                        arrive_expect(full, rows_bytes);
                        load(shared_address(stage), map_rows, full, now.step * 64, share.row(now.tile), 0);
                        now.advance(share.steps);
                    }
                    Weights::template write<planes>(floats, stage + rows_bytes, e[0], [](const float4&) {});
                });
        } else {
            const int row = (threadIdx.x / 128 - 1) * 64;
            float total[64], sum[64];
            wait_for_launches_before();
            share.for_each_tile([&](int tile, int steps) {
#pragma unroll
                for (int i = 0; i < 64; ++i) total[i] = 0.0f;
                ring.drain(
                    steps,
                    [&](unsigned stage) {
                        constexpr unsigned long long low_a = rows_plane / 16, low_b = Weights::plane_bytes / 16;
                        constexpr int next = by_n ? 16 * 128 / 16 : 2;  // 16 elements of the depth
                        const unsigned long long a = descriptor(stage + row * 128);
                        const unsigned long long b = descriptor(stage + rows_bytes, 1024, by_n ? 64 * 128 : 16);
                        if constexpr (planes == 2) {  // small products first: the tensor core truncates
#pragma unroll
                            for (int i = 0; i < 4; ++i) {
                                wgmma<Format::f16, false, by_n>(sum, a + low_a + i * 2, b + i * next, i > 0);
                                wgmma<Format::f16, false, by_n>(sum, a + i * 2, b + low_b + i * next, 1);
                            }
                        }
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            wgmma<Format::f16, false, by_n>(sum, a + i * 2, b + i * next, planes == 2 || i > 0);
                    },
                    [&](const float (&off)[1]) {
#pragma unroll
                        for (int i = 0; i < 64; ++i) total[i] += sum[i] * off[0];
                    });
                const int own = row + threadIdx.x / 32 % 4 * 16, top = share.row(tile) + own + threadIdx.x % 32 / 4;
                const int above = top < m ? exponents[top] : 0, below = top + 8 < m ? exponents[top + 8] : 0;
#pragma unroll
                for (int i = 0; i < 64; ++i) total[i] = scaled(total[i], i / 2 % 2 ? below : above);
                share.store(total, parts, tile, own);
            });
        }
    }
};

}  // namespace opbench
