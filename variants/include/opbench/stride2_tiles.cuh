// Tiles of 3 x 3 filters over skip and an image upsampled by 2, for wgmma: all pixels of a tile have the same parity of
// y and of x, so four 2 x 2 filters of summed weights are enough for the small image (explained in stride2_loader.cuh).
#pragma once
#include <opbench/sums.cuh>

namespace opbench {

struct ParityPlace {
    int column, x, y, image;  // first filter; first output pixel, which defines the parities of all pixels

    __device__ __forceinline__ int parity() const { return y % 2 * 2 + x % 2; }
};

// bm / 8 rows of 8 pixels times bn filters, in steps of bk channels: first skip at 9 positions, then low at 4.
template <int bm, int bn, int bk>
struct ParityTiles {
    int n, c1, c2, h, w, k, across, down, columns, of_skip, steps;

    __device__ __forceinline__ ParityTiles(int n_, int c1_, int c2_, int h_, int w_, int k_)
        : n(n_), c1(c1_), c2(c2_), h(h_), w(w_), k(k_), across((w + 7) / 8), down((h + bm / 8 - 1) / (bm / 8)),
          columns((k + bn - 1) / bn), of_skip(9 * ((c2 + bk - 1) / bk)), steps(of_skip + 4 * ((c1 + bk - 1) / bk)) {}
    // Consecutive tiles first change the filters, then the parities, so that neighbouring blocks share the pixels.
    __device__ __forceinline__ ParityPlace operator[](int index) const {
        const int parity = index / columns % 4, tile = index / columns / 4;
        return {index % columns * bn, tile % across * 16 + parity % 2, tile / across % down * (bm / 4) + parity / 2,
                tile / across / down};
    }
    // Call work(index) for each tile of this block; work computes the place from the index, which saves registers.
    template <class Work>
    __device__ __forceinline__ void for_each_tile(const Work& work) const {
        for (int index = blockIdx.x; index < n * down * across * 4 * columns; index += gridDim.x) work(index);
    }
};

// The next step to copy: channels from `channel` on, at one position of the filter.
struct ParityStep {
    int channel = 0, position = 0;

    // Call pixels(in_skip, channel, x, y) and filters(in_skip, channel, position).
    template <int bm, int bn, int bk, class Pixels, class Filters>
    __device__ __forceinline__ void copy(const ParityTiles<bm, bn, bk>& tiles, const ParityPlace& at, int step,
                                         const Pixels& pixels, const Filters& filters) {
        const bool in_skip = step < tiles.of_skip;
        if (in_skip)
            pixels(true, channel, at.x + position % 3 - 1, at.y + position / 3 - 1);
        else
            pixels(false, channel, (at.x + 1) / 2 + position % 2 - 1, (at.y + 1) / 2 + position / 2 - 1);
        filters(in_skip, channel, position);
        if ((channel += bk) < (in_skip ? tiles.c2 : tiles.c1)) return;
        channel = 0;
        if (++position == 9 || !in_skip && position == 4) position = 0;
    }
};

// Store a warp's 16 pixels, two rows of 8 from row y of the small image on, to out [n][2h][2w][k], k even.
template <int bm, int bn, int bk, int count>
__device__ __forceinline__ void store_parity(const float (&d)[count], float* out, const ParityTiles<bm, bn, bk>& size,
                                             const ParityPlace& at, int y) {
    const int lane = threadIdx.x % 32, x = at.x / 2 + lane / 4, column = at.column + lane % 4 * 2;
#pragma unroll
    for (int line = 0; line < 2; ++line) {
        const size_t row = (size_t)(at.image * size.h + y + line) * 2 + at.y % 2;
        float* to = out + ((row * size.w + x) * 2 + at.x % 2) * size.k + column;
#pragma unroll
        for (int j = 0; j < count / 4; ++j)
            if (y + line < size.h && x < size.w && column + j * 8 < size.k)
                store_two(to + j * 8, d[j * 4 + line * 2], d[j * 4 + line * 2 + 1]);
    }
}

}  // namespace opbench
