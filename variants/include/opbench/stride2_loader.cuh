// Load rows of a matrix whose row is an output pixel of a 3 x 3 filter over `skip` and over `low`, upsampled by 2 with
// the nearest pixel. All rows have the same parity of y and of x. Three neighbouring pixels of the upsampled image
// are then two pixels of low, always in the same pattern, so 2 x 2 filters of summed weights suffice for low. Rows of
// such filters are loaded at the same time.
#pragma once

#include <opbench/image_rows.cuh>

namespace opbench {

template <int pixels>
struct ParityWindows {
    int skip[pixels], low[pixels];  // start of a pixel's window in each, in elements; may be outside
    unsigned outside[pixels];       // as Window::outside; low's bits are shifted by `low_bits`
};

// The tensors low [n][h][w][c1] and skip [n][2h][2w][c2], and the parities of the output's rows and columns.
struct Parity {
    static constexpr int low_bits = 4;
    int n, c1, c2, h, w, y, x;

    __device__ __forceinline__ int pixels() const { return n * h * w; }
    __device__ __forceinline__ int depth() const { return 9 * c2 + 4 * c1; }
    // Map the m-th row to its output pixel.
    __device__ __forceinline__ int operator()(int m) const { return (m / w * 2 + y) * 2 * w + m % w * 2 + x; }
    template <class Windows>
    __device__ __forceinline__ void find(Windows& windows, int row, int m) const {
        const bool exists = m < pixels();
        const int line = exists ? m / w : 0, column = exists ? m % w : 0, inside = line % h;  // images are stacked
        const bool top = inside == 0 && y == 0, bottom = inside == h - 1 && y == 1;
        const bool left = column == 0 && x == 0, right = column == w - 1 && x == 1;
        windows.outside[row] =
            exists ? 1u << 31 | top * 0x11u | bottom * 0x24u | left * 0x110000u | right * 0x240000u : ~0u;
        windows.skip[row] = ((line * 2 + y - 1) * 2 * w + column * 2 + x - 1) * c2;
        windows.low[row] = ((line + y - 1) * w + column + x - 1) * c1;
    }
};

// Return element `at` of filters [4 parities, y outermost][k][9 c2, then 4 c1], computed from weight [k][3][3][c2 +
// c1].
template <class T>
__device__ __forceinline__ T summed_filter(const T* weight, int at, int k, int c1, int c2) {
    const int depth = 9 * c2 + 4 * c1, element = at % depth, parity = at / depth / k;
    const T* from = weight + (size_t)(at / depth % k) * 9 * (c1 + c2);
    if (element < 9 * c2) return from[element / c2 * (c1 + c2) + element % c2];
    const int tap = (element - 9 * c2) / c1, channel = c2 + (element - 9 * c2) % c1;
    // A pixel of even y uses low's previous row once and its own row twice; a pixel of odd y uses its own row twice and
    // the next row once.
    const int first_i = tap / 2 == 0 ? 0 : 1 + parity / 2, last_i = tap / 2 == 0 ? parity / 2 : 2;
    const int first_j = tap % 2 == 0 ? 0 : 1 + parity % 2, last_j = tap % 2 == 0 ? parity % 2 : 2;
    float sum = 0.0f;
    for (int i = first_i; i <= last_i; ++i)
        for (int j = first_j; j <= last_j; ++j) sum += (float)from[(i * 3 + j) * (c1 + c2) + channel];
    return T(sum);
}

// Fill a stage of bm pixels of both images and bn filters of [k][depth]; the channels of each image are whole chunks.
template <class Block>
struct ParityAndFilters {
    typedef typename Block::T T;
    typedef ParityWindows<Block::bm> Windows;
    static constexpr bool pads_with_zeros = false;
    static constexpr int vec = Block::vec, fill_rows = Block::fill_rows;
    static constexpr int a_loads = Block::bm / fill_rows, b_loads = Block::bn / fill_rows;

    const T *low, *skip, *filters;
    const Windows& windows;
    StageWriter<Block> to;
    Taps taps;  // position in skip, later in low
    bool in_low = false;
    int c1, w, depth, filter, filters_left;

    // m0, n0: the block's first row and filter; start: its start in the depth. Writes the windows of the block's rows.
    __device__ __forceinline__ ParityAndFilters(unsigned char* memory, const T* low, const T* skip, const T* filters,
                                                Windows& windows, const Parity& size, int m0, int n0, int k,
                                                int start = 0)
        : low(low), skip(skip), filters(filters), windows(windows), to(memory),
          taps(start + to.chunk * vec, Block::bk, size.c2, 3, 3), c1(size.c1), w(size.w), depth(size.depth()) {
        filters_left = k - n0 - to.row;
        filter = (n0 + to.row) * depth + start + to.chunk * vec;
        advance_to_low();
        for (int row = threadIdx.x; row < Block::bm; row += Block::threads) size.find(windows, row, m0 + row);
        __syncthreads();
    }

    // The positions of low follow the last position of skip.
    __device__ __forceinline__ void advance_to_low() {
        if (in_low || taps.i < 3) return;
        taps = Taps(((taps.i - 3) * 3 + taps.j) * taps.c + taps.channel, Block::bk, c1, 2, 2);
        in_low = true;
    }

    // Copy the next step into the next stage; stages are used cyclically.
    __device__ __forceinline__ void operator()(int) {
        const bool exists = taps.i < taps.r;
        const unsigned tap_mask = exists ? taps.tap_mask() << (in_low ? Parity::low_bits : 0) : 1u << 31;
        const int* const origin = in_low ? windows.low : windows.skip;
        const T* const from =
            (in_low ? low : skip) + ((taps.i * (in_low ? w : 2 * w) + taps.j) * taps.c + taps.channel);
#pragma unroll
        for (int l = 0; l < a_loads; ++l) {
            const int row = to.row + l * fill_rows;
            copy_chunk(to[l], from + origin[row], windows.outside[row] & tap_mask ? 0 : 16);
        }
#pragma unroll
        for (int l = 0; l < b_loads; ++l)
            copy_chunk(to[a_loads + l], filters + (filter + l * fill_rows * depth),
                       exists && l * fill_rows < filters_left ? 16 : 0);
        filter += Block::bk;
        taps.step();
        advance_to_low();
        to.next_stage();
    }
};

}  // namespace opbench
