// Winograd's products: stored in memory and then added to 2 x 2 outputs, or added in registers one by one.
#pragma once

#include <opbench/matrix_rows.cuh>
#include <opbench/winograd.cuh>

namespace opbench {

// patches [16][tiles][c], filters [16][k][c] -> products [16][tiles][k]; blockIdx.y selects one of the 16.
template <class Block>
__device__ __forceinline__ void store_product(unsigned char* shared, const float* patches, const float* filters,
                                              float* products, int tiles, int k, int c) {
    const int tiles_n = (k + Block::bn - 1) / Block::bn;  // neighbouring blocks share the rows of patches
    const int m0 = (int)(blockIdx.x / tiles_n) * Block::bm, n0 = (int)(blockIdx.x % tiles_n) * Block::bn;
    MatrixRows<Block, true> rows(shared, patches + (size_t)blockIdx.y * tiles * c, filters + (size_t)blockIdx.y * k * c,
                                 m0, n0, tiles, k, c, 0, c);
    const Warp<Block> warp;
    typename Block::Sums sum = {};
    multiply_stages<Block>(sum, shared, (c + Block::bk - 1) / Block::bk, warp, rows);
    store_tile<Block, false, false>(sum, shared, products + (size_t)blockIdx.y * tiles * k, (const float*)nullptr,
                                    m0 + warp.m, n0 + warp.n, tiles, k);
}

// products [4][4][n][rows][columns][k]: compute At m A with At = [1 1 1 0; 0 1 -1 -1]. A thread has one vector of
// channels of 2 x 2 pixels of [n][p][q][k] and calls finish(index of the vector, its index in the pixel, value) for
// each pixel.
template <class Vector, class Finish>
__device__ __forceinline__ void transform_products(const Vector* products, int n, int vectors, int p, int q,
                                                   Finish finish) {
    const int index = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int rows = (p + 1) / 2, columns = (q + 1) / 2, tiles = n * rows * columns;
    if (index >= tiles * vectors) return;
    const int tile = index / vectors, vector = index % vectors;
    const int x = tile % columns * 2, y = tile / columns % rows * 2;
    const Vector* from = products + index;
    const size_t next = (size_t)tiles * vectors;
    Vector upper[4], lower[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const Vector m1 = from[(4 + j) * next], m2 = from[(8 + j) * next];
        upper[j] = from[j * next] + m1 + m2;
        lower[j] = m1 - m2 - from[(12 + j) * next];
    }
    const Vector results[2][2] = {{upper[0] + upper[1] + upper[2], upper[1] - upper[2] - upper[3]},
                                  {lower[0] + lower[1] + lower[2], lower[1] - lower[2] - lower[3]}};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if (y + i < p && x + j < q)
                finish((((size_t)(tile / columns / rows) * p + y + i) * q + x + j) * vectors + vector, vector,
                       results[i][j]);
}

// Return the place of a tile's 2 x 2 outputs. .x of the result: the index of the upper left one; bit 2 i + j of .y:
// whether row i, column j exists.
__device__ __forceinline__ int2 find_pixels(int tile, int n, int p, int q) {
    const int rows = (p + 1) / 2, columns = (q + 1) / 2;
    if (tile >= n * rows * columns) return {0, 0};
    const int x = tile % columns * 2, y = tile / columns % rows * 2;
    const int row = x + 1 < q ? 3 : 1;
    return {(tile / columns / rows * p + y) * q + x, y + 1 < p ? row | row << 2 : row};
}

// Load rows of patches and filters, for one product after the other.
template <class Block>
struct AllRows : MatrixRows<Block, true> {
    typedef MatrixRows<Block, true> First;
    static constexpr bool pads_with_zeros = false;
    int c, channel = 0;  // first channel of the next step
    long long a_next, b_next;

    __device__ __forceinline__ AllRows(const First& first, int tiles, int k, int c, int steps)
        : First(first), c(c), a_next((long long)tiles * c - steps * Block::bk),
          b_next((long long)k * c - steps * Block::bk) {}
    __device__ __forceinline__ void operator()(int slot) {
        First::operator()(slot);
        channel += Block::bk;
        if (channel >= c) this->a.from += a_next, this->b.from += b_next, this->left += channel, channel = 0;
    }
};

// patches [points][points][tiles][c], filters [points][points][k][c] -> At m A, as [n][p][q][k] by `finish`.
template <class Block, int size, class Finish>
__device__ __forceinline__ void sum_products(unsigned char* shared, const float* patches, const float* filters, int n,
                                             int k, int c, int p, int q, Finish finish) {
    constexpr int points = winograd_points(size), tm = Block::tm, tn = Block::tn;
    __shared__ int2 pixels[Block::bm];
    const int tiles = n * ((p + 1) / 2) * ((q + 1) / 2);
    const int tiles_n = (k + Block::bn - 1) / Block::bn;  // neighbouring blocks share the rows of patches
    const int m0 = (int)(blockIdx.x / tiles_n) * Block::bm, n0 = (int)(blockIdx.x % tiles_n) * Block::bn;
    for (int row = threadIdx.x; row < Block::bm; row += Block::threads) pixels[row] = find_pixels(m0 + row, n, p, q);

    const int steps = (c + Block::bk - 1) / Block::bk;
    AllRows<Block> rows({shared, patches, filters, m0, n0, tiles, k, c, 0, c}, tiles, k, c, steps);
    const Warp<Block> warp;
    typename Block::Sums part = {}, sum[4] = {};  // sums of the outputs 2 i + j
    float factors[4] = {1.0f, 0.0f, 0.0f, 0.0f};
    int product = 0, step = 0;  // the product and the step of the current factors
    multiply_parts<Block, false, false>(part, shared, points * points * steps, warp, rows, [&] {
#pragma unroll
        for (int e = 0; e < 4 * tm * tn; ++e) {
            float& partial = part[e / 4 / tn][e / 4 % tn][e % 4];
#pragma unroll
            for (int output = 0; output < 4; ++output)
                sum[output][e / 4 / tn][e / 4 % tn][e % 4] += factors[output] * partial;
            partial = 0.0f;
        }
        if (++step < steps) return;
        step = 0, ++product;
#pragma unroll
        for (int output = 0; output < 4; ++output)
            factors[output] = output_factor(output / 2, product / points) * output_factor(output % 2, product % points);
    });
    store_outputs<Block>(
        sum, shared, n0 + warp.n, k,
        [&](int row, int output) {
            const int2 at = pixels[warp.m + row];
            return at.y >> output & 1 ? at.x + output / 2 * q + output % 2 : -1;
        },
        finish);
}

}  // namespace opbench
