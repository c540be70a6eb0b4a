// Load rows of a matrix whose row is a pixel: first the channels of `skip`, then the channels of `low`, upsampled by 2
// with the nearest pixel. Neither the upsampled image nor the concatenated one is stored in memory. Rows of filters are
// loaded at the same time.
#pragma once

#include <opbench/image_rows.cuh>

namespace opbench {

// The start of a pixel's window in the tensor that is read at filter position (i, j). `low` is read at ((y + i) / 2,
// (x + j) / 2): i / 2 rows and j / 2 columns from an origin that the parities of i and j select.
constexpr int in_skip = 4;  // origins 0 to 3 are in low: i % 2 * 2 + j % 2
template <int pixels>
struct JoinedWindows {
    int origin[5][pixels];     // in elements; may be outside of the image
    unsigned outside[pixels];  // bits as in Window::outside
};

// The tensors low [n][h][w][c1] and skip [n][2h][2w][c2], and the filter over both, which gives p x q pixels.
struct Joined {
    int n, c1, c2, h, w, r, s, padding, p, q;

    __device__ __forceinline__ Joined(int n, int c1, int c2, int h, int w, int r, int s, int padding)
        : n(n), c1(c1), c2(c2), h(h), w(w), r(r), s(s), padding(padding), p(2 * h + 2 * padding - r + 1),
          q(2 * w + 2 * padding - s + 1) {}
    __device__ __forceinline__ int pixels() const { return n * p * q; }
    __device__ __forceinline__ int depth() const { return r * s * (c1 + c2); }
    template <class Windows>
    __device__ __forceinline__ void find(Windows& windows, int row, int m) const {
        const bool exists = m < pixels();
        const int pixel = exists ? m % (p * q) : 0, image = exists ? m / (p * q) : 0;
        const int y = pixel / q - padding, x = pixel % q - padding;
        const int first_i = min(max(-y, 0), r), last_i = max(min(2 * h - y, r), first_i);
        const int first_j = min(max(-x, 0), s), last_j = max(min(2 * w - x, s), first_j);
        const unsigned inside = ((1u << last_i) - (1u << first_i)) | ((1u << last_j) - (1u << first_j)) << 16;
        windows.outside[row] = exists ? ~inside : ~0u;
        const int below = image * 2 * h + y;  // images are stacked vertically; each has an even number of rows
#pragma unroll
        for (int odd = 0; odd < 4; ++odd)
            windows.origin[odd][row] = ((below + odd / 2 >> 1) * w + (x + odd % 2 >> 1)) * c1;
        windows.origin[in_skip][row] = (below * 2 * w + x) * c2;
    }
};

// Fill a stage of bm pixels and bn filters of weight [k][depth]. `aligned`: each image's channels are whole chunks.
template <class Block, bool aligned>
struct JoinedAndFilters {
    typedef typename Block::T T;
    typedef JoinedWindows<Block::bm> Windows;
    static constexpr bool pads_with_zeros = false;  // a branch needs fewer registers than copying zeros after the end
    static constexpr int vec = Block::vec, fill_rows = Block::threads / chunks;
    static constexpr int a_loads = Block::bm / fill_rows, b_loads = Block::bn / fill_rows;

    const T *low, *skip, *weight;
    const Windows& windows;
    Taps taps;
    unsigned char* memory;  // this thread's address in the first stage
    int c1, c2, w, depth, filter, filters_left, row;

    // m0, n0: the block's first pixel and filter. Compute the windows of the block's pixels.
    __device__ __forceinline__ JoinedAndFilters(unsigned char* memory, const T* low, const T* skip, const T* weight,
                                                Windows& windows, const Joined& size, int m0, int n0, int k)
        : low(low), skip(skip), weight(weight), windows(windows),
          taps(threadIdx.x % chunks * vec, Block::bk, size.c1 + size.c2, size.r, size.s),
          memory(memory + swizzled_offset(threadIdx.x / chunks, threadIdx.x % chunks)), c1(size.c1), c2(size.c2),
          w(size.w), depth(size.depth()), row(threadIdx.x / chunks) {
        filters_left = k - n0 - row;
        filter = (n0 + row) * depth + threadIdx.x % chunks * vec;
        for (int at = threadIdx.x; at < Block::bm; at += Block::threads) size.find(windows, at, m0 + at);
        __syncthreads();
    }

    struct Tap {
        const T* from;  // the image, offset from the window's origin
        const int* origin;
        unsigned tap_mask;  // the bits of `outside` that must be 0
    };
    __device__ __forceinline__ Tap find(const Taps& at) const {
        const int i = at.i, j = at.j, channel = at.channel;
        if (channel < c2) return {skip + ((i * 2 * w + j) * c2 + channel), windows.origin[in_skip], at.tap_mask()};
        return {low + (((i >> 1) * w + (j >> 1)) * c1 + channel - c2), windows.origin[(i & 1) * 2 + (j & 1)],
                at.tap_mask()};
    }

    // Copy the next step to stage `slot`.
    __device__ __forceinline__ void operator()(int slot) {
        unsigned char* const to = memory + slot * Block::stage_bytes;
        if constexpr (aligned)
            copy_chunks((unsigned)__cvta_generic_to_shared(to));
        else
            copy_elements(to);
        filter += Block::bk;
        taps.step();
    }

    __device__ __forceinline__ void copy_chunks(unsigned to) const {
        const Tap tap = find(taps);
#pragma unroll
        for (int l = 0; l < a_loads; ++l) {
            const int at = row + l * fill_rows;  // read again in each step: windows in registers would cause spills
            copy_chunk(to + l * fill_rows * row_bytes, tap.from + tap.origin[at],
                       windows.outside[at] & tap.tap_mask ? 0 : 16);
        }
#pragma unroll
        for (int l = 0; l < b_loads; ++l)
            copy_chunk(to + (Block::bm + l * fill_rows) * row_bytes, weight + (filter + l * fill_rows * depth),
                       taps.i < taps.r && l * fill_rows < filters_left ? 16 : 0);
    }

    // If channels are not whole chunks, a chunk spans filter positions, so its elements are copied one by one.
    __device__ __forceinline__ void copy_elements(unsigned char* to) const {
        constexpr int per_word = 4 / sizeof(T);
        Taps at = taps;
#pragma unroll 1
        for (int word = 0; word < 4; ++word) {
            union Word {
                T elements[per_word];
                unsigned bits;
            } words[a_loads > b_loads ? a_loads : b_loads];
            Tap tap[per_word];
#pragma unroll
            for (int e = 0; e < per_word; ++e) {
                tap[e] = find(at);
                at.step_one();
            }
#pragma unroll
            for (int l = 0; l < a_loads; ++l)
#pragma unroll
                for (int e = 0; e < per_word; ++e)
                    words[l].elements[e] = windows.outside[row + l * fill_rows] & tap[e].tap_mask
                                               ? T(0.0f)
                                               : tap[e].from[tap[e].origin[row + l * fill_rows]];
#pragma unroll
            for (int l = 0; l < a_loads; ++l)
                *reinterpret_cast<unsigned*>(to + word * 4 + l * fill_rows * row_bytes) = words[l].bits;
#pragma unroll
            for (int l = 0; l < b_loads; ++l)
#pragma unroll
                for (int e = 0; e < per_word; ++e)
                    words[l].elements[e] = tap[e].tap_mask >> 31 == 0 && l * fill_rows < filters_left
                                               ? weight[filter + word * per_word + e + l * fill_rows * depth]
                                               : T(0.0f);
#pragma unroll
            for (int l = 0; l < b_loads; ++l)
                *reinterpret_cast<unsigned*>(to + word * 4 + (Block::bm + l * fill_rows) * row_bytes) = words[l].bits;
        }
    }
};

}  // namespace opbench
