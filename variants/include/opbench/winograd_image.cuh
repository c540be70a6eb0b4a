// Winograd's patches, transformed between shared memory and registers: a block loads the pixels of 16 x 16 outputs.
#pragma once

#include <opbench/stages.cuh>
#include <opbench/winograd.cuh>

namespace opbench {

constexpr int image_tiles = 8;             // tiles of 2 x 2 outputs, along each axis
constexpr int side = 2 * image_tiles + 2;  // pixels that they depend on, along each axis
constexpr int image_pitch = 36;            // floats between pixels: the 8-byte loads of 4 tiles have no bank conflict

// Store a filter vector's 8 channels with the even ones first, to match the two neighbouring channels that a thread
// loads.
__device__ __forceinline__ void store_interleaved(float* filters, size_t vector, float4 value) {
    float2* to = reinterpret_cast<float2*>(filters) + vector / 2 * 4 + vector % 2;
    to[0] = make_float2(value.x, value.z);
    to[2] = make_float2(value.y, value.w);
}

// One of the 4 x 4 products, from the rows or columns of Bt = [1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1] and
// At = [1 1 1 0; 0 1 -1 -1]: the pixels first + sign * second, and the factors of its two outputs.
struct Line {
    int first, second;
    float sign, factors[2];
};
__device__ __forceinline__ Line line(int i) {
    return {i == 3 ? 1 : i,
            i < 2    ? 2
            : i == 2 ? 1
                     : 3,
            i == 1 ? 1.0f : -1.0f,
            {i < 3 ? 1.0f : 0.0f, i == 0   ? 0.0f
                                  : i == 1 ? 1.0f
                                           : -1.0f}};
}

// image [n][h][w][c], filters [4][4][k][c] -> [n][p][q][k] by `finish`. pixels: [2][side][side][image_pitch], then
// [stages][bn] rows of filters.
template <class Block, class Finish>
__device__ __forceinline__ void convolve_image(float* pixels, const float* image, const float* filters, int n, int c,
                                               int h, int w, int k, int p, int q, int padding, Finish finish) {
    constexpr int image_floats = side * side * image_pitch, copies = side * side * chunks;
    constexpr int copies_per_step = 256;  // copies of the next pixels: complete before the last stages of 16 steps
    static_assert(copies <= copies_per_step * (16 - Block::stages) && copies_per_step % Block::threads == 0,
                  "they arrive in time");
    static_assert(image_pitch == Block::bk + 4, "a step's channels and four");
    constexpr int stage_bytes = Block::bn * row_bytes;
    const int tiles_k = (k + Block::bn - 1) / Block::bn;  // neighbouring blocks share their pixels
    const int blocks_x = (q + 15) / 16, blocks_y = (p + 15) / 16, block = (int)(blockIdx.x / tiles_k);
    const int n0 = (int)(blockIdx.x % tiles_k) * Block::bn, image_index = block / blocks_x / blocks_y;
    const int out_x = block % blocks_x * 16, out_y = block / blocks_x % blocks_y * 16;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int parts = (c + Block::bk - 1) / Block::bk;  // parts of the channels

    const unsigned shared = (unsigned)__cvta_generic_to_shared(pixels);
    auto copy_pixel = [&](int index, int chunk) {  // four channels of one pixel
        const int pixel = index / chunks, channel = chunk * Block::bk + index % chunks * 4;
        const int y = out_y - padding + pixel / side, x = out_x - padding + pixel % side;
        const bool inside = y >= 0 && y < h && x >= 0 && x < w && channel < c;
        copy_chunk(shared + (chunk % 2 * image_floats + pixel * image_pitch + index % chunks * 4) * 4,
                   image + ((((long long)image_index * h + y) * w + x) * c + channel), inside ? 16 : 0);
    };

    // Each thread fills one chunk of every fill_rows-th row.
    const int fill_row = thread / chunks, fill_chunk = thread % chunks;
    const unsigned stages = shared + 2 * image_floats * 4, fill_to = stages + swizzled_offset(fill_row, fill_chunk);
    auto fill = [&](int slot, int step) {
        const int product = step % 16, channel = step / 16 * Block::bk + fill_chunk * 4;
        const float* from = filters + ((size_t)product * k + n0 + fill_row) * c + channel;
#pragma unroll
        for (int l = 0; l < Block::bn / Block::fill_rows; ++l)
            copy_chunk(fill_to + slot * stage_bytes + l * Block::fill_rows * row_bytes, from + l * Block::fill_rows * c,
                       channel < c && n0 + fill_row + l * Block::fill_rows < k ? 16 : 0);
    };

    // The rows of an mma instruction's first operand are tiles: lane / 4 is the tile's column, and 8 rows further is
    // the next line of tiles.
    const int m_warp = warp / Block::warps_n * 32, n_warp = warp % Block::warps_n * 32;
    const int a_lane = (m_warp / image_tiles * 2 * side + lane / 4 * 2) * image_pitch + lane % 4 * 2;
    // Lane l provides ldmatrix with the address of one chunk of a slice: in row l % 8 + l / 16 * 8 of 16 filters.
    const unsigned b_lane = swizzled_offset(n_warp + lane % 8 + lane / 16 * 8, lane / 8 % 2);

    for (int index = thread; index < copies; index += Block::threads) copy_pixel(index, 0);
#pragma unroll
    for (int stage = 0; stage < Block::stages - 1; ++stage) {
        fill(stage, stage);
        commit();
    }
    wait<Block::stages - 2>();
    __syncthreads();
    typename Block::Sums sum[4] = {};  // sums of the outputs 2 i + j
#pragma unroll 1
    for (int step = 0; step < 16 * parts; ++step) {
        const int chunk = step / 16, product = step % 16;
        if (step + Block::stages - 1 < 16 * parts)
            fill((step + Block::stages - 1) % Block::stages, step + Block::stages - 1);
        if (chunk + 1 < parts)
#pragma unroll
            for (int l = 0; l < copies_per_step; l += Block::threads)
                if (product * copies_per_step + l + thread < copies)
                    copy_pixel(product * copies_per_step + l + thread, chunk + 1);
        commit();

        const Line row = line(product / 4), column = line(product % 4);
        const float* upper = pixels + chunk % 2 * image_floats + a_lane + row.first * side * image_pitch;
        const float* lower = upper + (row.second - row.first) * side * image_pitch;
        const int first = column.first * image_pitch, second = column.second * image_pitch;
        auto combine = [&](int offset) {
            const float2 a = *reinterpret_cast<const float2*>(upper + first + offset);
            const float2 b = *reinterpret_cast<const float2*>(upper + second + offset);
            const float2 d = *reinterpret_cast<const float2*>(lower + first + offset);
            const float2 e = *reinterpret_cast<const float2*>(lower + second + offset);
            return make_float2(a.x + column.sign * b.x + row.sign * (d.x + column.sign * e.x),
                               a.y + column.sign * b.y + row.sign * (d.y + column.sign * e.y));
        };
        // The tensor core truncates its running sum, so it adds only one step of 32 itself.
        typename Block::Sums part = {};
        const unsigned from = stages + step % Block::stages * stage_bytes;
#pragma unroll
        for (int slice = 0; slice < Block::slices; ++slice) {
            typename Block::A a[1];
            typename Block::B b[1];
#pragma unroll
            for (int ni = 0; ni < Block::tn / 2; ++ni)
                load_matrices(b[0][ni], from + (b_lane ^ slice * 32) + ni * 16 * row_bytes);
#pragma unroll
            for (int half = 0; half < Block::tm * 2; ++half) {
                const float2 pair = combine(half * 2 * side * image_pitch + slice * 8);
                a[0][half / 2][half % 2] = __float_as_uint(pair.x);
                a[0][half / 2][half % 2 + 2] = __float_as_uint(pair.y);
            }
            Block::Product::multiply(a, b, part);
        }
#pragma unroll
        for (int output = 0; output < 4; ++output) {
            const float factor = row.factors[output / 2] * column.factors[output % 2];
#pragma unroll
            for (int e = 0; e < Block::tm * Block::tn * 4; ++e)
                sum[output][e / 4 / Block::tn][e / 4 % Block::tn][e % 4] +=
                    factor * part[e / 4 / Block::tn][e / 4 % Block::tn][e % 4];
        }
        wait<Block::stages - 2>();
        __syncthreads();
    }

    wait<0>();
    __syncthreads();
    store_outputs<Block>(
        sum, pixels, n0 + n_warp, k,
        [&](int row, int output) {
            const int tile = m_warp + row;
            const int y = out_y + tile / image_tiles * 2 + output / 2, x = out_x + tile % image_tiles * 2 + output % 2;
            return y < p && x < q ? (image_index * p + y) * q + x : -1;
        },
        finish);
}

}  // namespace opbench
