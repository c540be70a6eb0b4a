// A float matrix product on CUDA cores whose operands are both contiguous along the depth: [rows][depth] by
// [columns][depth]. Both are transposed while they are stored to shared memory.
#pragma once

#include <opbench/float_tile.cuh>

namespace opbench {

// The partition of a block's bm x bn outputs: a thread has tm x tn outputs in groups of 4 x 4, which are 4 * lanes_m
// rows and 4 * lanes_n columns apart; a warp has 8 x 4 threads.
template <int bm, int bn, int bk, int tm, int tn>
struct ColumnTiles {
    static constexpr int threads = bm * bn / (tm * tn);
    // The number of threads that should be resident on a multiprocessor; this leaves 255, 128 or 168 registers per
    // thread.
    static constexpr int resident = tm * tn > 64 ? 256 : bm > 64 ? 512 : 384;
    static constexpr int lanes_m = 8, lanes_n = 4, warps_n = bn / (lanes_n * tn);
    static constexpr int a_passes = bm * bk / (4 * threads), b_passes = bk * bn / (4 * threads);  // float4 per thread
    static constexpr int step = threads / (bk / 4);  // rows from one pass to the next
};

// Compute out [m][n] = a [m][k] * b [n][k]; with `biased` plus bias[n]; with `relu` negative results become 0.
template <int bm, int bn, int bk, int tm, int tn, bool biased, bool relu>
__device__ __forceinline__ void multiply_by_columns(const float* __restrict__ a, const float* __restrict__ b,
                                                    const float* __restrict__ bias, float* __restrict__ out, int m,
                                                    int n, int k) {
    typedef ColumnTiles<bm, bn, bk, tm, tn> Tiles;
    static_assert(Tiles::threads % 32 == 0 && bm % (Tiles::lanes_m * tm) == 0 && bn % (Tiles::lanes_n * tn) == 0,
                  "whole warp tiles");
    static_assert(Tiles::a_passes * 4 * Tiles::threads == bm * bk && Tiles::b_passes * 4 * Tiles::threads == bk * bn,
                  "whole passes");
    static_assert(bk == 8 || bk == 16, "the swizzle and the alternating registers");
    __shared__ __align__(16) float a_tiles[2][bk * bm];  // transposed and swizzled: [k][row]
    __shared__ __align__(16) float b_tiles[2][bk * bn];  // transposed and swizzled: [k][column]
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int tiles_n = (n + bn - 1) / bn;
    const int row0 = blockIdx.x / tiles_n * bm, col0 = blockIdx.x % tiles_n * bn;
    // Lanes that differ only in bit 0 read the same words of a; lanes that differ only in bit 1 read the same words of
    // b. The float4 loads of a half-warp then take one pass over the banks instead of two (lane order of S. Gray's
    // maxas).
    const int down = warp / Tiles::warps_n * Tiles::lanes_m * tm + (lane / 2 % Tiles::lanes_m) * 4;
    const int across = warp % Tiles::warps_n * Tiles::lanes_n * tn + (lane % 2 + lane / 16 * 2) * 4;
    // If the row length is a multiple of 4, four neighbours are all inside or all outside, and aligned.
    const bool k_aligned = k % 4 == 0, n_aligned = n % 4 == 0;

    // This thread loads float4 number tid, tid + Tiles::threads, ... of each tile; they are numbered row by row.
    const int a_row = tid / (bk / 4), a_k = tid % (bk / 4) * 4;
    const float* a_from = a + (size_t)(row0 + a_row) * k + a_k;
    const int a_rows = m - row0 - a_row;
    const float* b_from = b + (size_t)(col0 + a_row) * k + a_k;
    const int b_cols = n - col0 - a_row;
    float4 a_next[Tiles::a_passes], b_next[Tiles::b_passes];
    const auto fetch = [&](int k_left) {  // k_left: elements of the depth that are not loaded yet
        const int a_left = k_left - a_k;
        if (k_aligned) {
#pragma unroll
            for (int p = 0; p < Tiles::a_passes; ++p)
                a_next[p] = load4(a_from + (size_t)(p * Tiles::step) * k, p * Tiles::step < a_rows && a_left > 0);
        } else {
#pragma unroll
            for (int p = 0; p < Tiles::a_passes; ++p)
                a_next[p] = load_upto4(a_from + (size_t)(p * Tiles::step) * k, p * Tiles::step < a_rows ? a_left : 0);
        }
        a_from += bk;
        if (k_aligned) {
#pragma unroll
            for (int p = 0; p < Tiles::b_passes; ++p)
                b_next[p] = load4(b_from + (size_t)(p * Tiles::step) * k, p * Tiles::step < b_cols && a_left > 0);
        } else {
#pragma unroll
            for (int p = 0; p < Tiles::b_passes; ++p)
                b_next[p] = load_upto4(b_from + (size_t)(p * Tiles::step) * k, p * Tiles::step < b_cols ? a_left : 0);
        }
        b_from += bk;
    };
    const auto stage = [&](int buffer) {
#pragma unroll
        for (int p = 0; p < Tiles::a_passes; ++p)
            store_transposed<bk>(a_tiles[buffer], bm, a_k, a_row + p * Tiles::step, a_next[p]);
#pragma unroll
        for (int p = 0; p < Tiles::b_passes; ++p)
            store_transposed<bk>(b_tiles[buffer], bn, a_k, a_row + p * Tiles::step, b_next[p]);
    };

    alignas(16) float a_part[tm], b_part[tn];
    const auto read = [&](int buffer, int i) {
#pragma unroll
        for (int r = 0; r < tm; r += 4)
            *reinterpret_cast<float4*>(&a_part[r]) =
                *reinterpret_cast<const float4*>(&a_tiles[buffer][i * bm + swizzle<bk>(i, down) + r * Tiles::lanes_m]);
        // Bit 4 of `across` is 0, and c * Tiles::lanes_n has no lower bit: so the xor can be applied to each part
        // separately, to the second one at compile time.
        const int low = swizzle<bk>(i, 0) % 16, high = swizzle<bk>(i, 0) / 16 * 16;
#pragma unroll
        for (int c = 0; c < tn; c += 4)
            *reinterpret_cast<float4*>(&b_part[c]) = *reinterpret_cast<const float4*>(
                &b_tiles[buffer][i * bn + (across ^ low) + (c * Tiles::lanes_n ^ high)]);
    };

    alignas(16) float sum[tm][tn] = {};
    if constexpr (biased) {
#pragma unroll
        for (int c = 0; c < tn; ++c) {
            const int col = col0 + across + c / 4 * 4 * Tiles::lanes_n + c % 4;
            const float start = col < n ? bias[col] : 0.0f;
#pragma unroll
            for (int r = 0; r < tm; ++r) sum[r][c] = start;
        }
    }
    fetch(k);
    stage(0);
    __syncthreads();
    int buffer = 0;
#pragma unroll 1
    for (int base = 0; base < k; base += bk) {
        const bool more = base + bk < k;
        if (more) fetch(k - base - bk);
#pragma unroll
        for (int i = 0; i < bk; ++i) {
            read(buffer, i);
#pragma unroll
            for (int r = 0; r < tm; ++r)
#pragma unroll
                for (int c = 0; c < tn; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        // The other buffer was last read before the previous barrier, so one barrier per tile is enough.
        buffer ^= 1;
        if (more) stage(buffer);
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < tm; ++r) {
        const int row = row0 + down + r / 4 * 4 * Tiles::lanes_m + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int c = 0; c < tn; ++c)
            if (relu) sum[r][c] = fmaxf(sum[r][c], 0.0f);
#pragma unroll
        for (int c = 0; c < tn; c += 4) {
            const int col = col0 + across + c * Tiles::lanes_n;
            float* p = out + (size_t)row * n + col;
            store_upto4(p, &sum[r][c], col, n, n_aligned);
        }
    }
}

}  // namespace opbench
