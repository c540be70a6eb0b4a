// A convolution of volumes [n][c][d][h][w] as an implicit matrix product on CUDA cores: rows are filters, columns are
// outputs, and the depth is filter position x channel. A previous launch packs the weight, as floats with the filters
// innermost.
#pragma once

#include <cuda_bf16.h>

#include <opbench/float_tile.cuh>
#include <opbench/volume.cuh>

namespace opbench {

// Multiply a block's bm filters from `row0` on by its bn outputs from `column0` on. packed [all taps][channels][pitch]
// and `image` begin at the group; `images` is the distance from one image to the next.
template <int bm, int bn, int bk, class T>
__device__ __forceinline__ void multiply_volume(const float* __restrict__ packed, const T* __restrict__ image,
                                                const VolumeSizes& size, const Volume& volume, int pitch, int images,
                                                int row0, int column0, int row, int column, float (&sum)[8][8]) {
    typedef SquareTiles<bm, bn> Tiles;
    constexpr int threads = Tiles::threads, a_loads = bm * bk / 4 / threads, a_rows = threads / (bm / 4);
    constexpr int b_rows = threads / bn, b_loads = bk / b_rows;
    __shared__ __align__(16) float a_tile[2][bk][bm];
    __shared__ __align__(16) float b_tile[2][bk][bn];
    // In every step, a thread loads every b_rows-th channel of the same output, and four filters of every a_rows-th
    // channel.
    const int b_column = threadIdx.x % bn, b_row = threadIdx.x / bn;
    const int a_column = threadIdx.x % (bm / 4) * 4, a_row = threadIdx.x / (bm / 4);
    const int channels = size.group_channels, voxels = size.d * size.h * size.w;
    const bool exists = column0 + b_column < volume.outputs(), a_inside = row0 + a_column < pitch;
    const Output output = exists ? volume.output(column0 + b_column) : Output{0, 0, 0, 0};
    const T* source = image + (size_t)output.image * images;

    int a = 0, i = 0, j = 0, first = 0;  // filter position and first channel of the next step to load
    int a_offset = 0, b_offset = 0;
    bool inside = false;
    auto aim = [&] {
        const int z = volume.d.voxel(output.z, a), y = volume.h.voxel(output.y, i), x = volume.w.voxel(output.x, j);
        inside = exists && volume.d.inside(z) && volume.h.inside(y) && volume.w.inside(x);
        b_offset = b_row * voxels + (inside ? (z * size.h + y) * size.w + x : 0);
        a_offset = (volume.element(a, i, j, size.r, size.s) * channels + a_row) * pitch + row0 + a_column;
    };
    float4 a_next[a_loads];
    float b_next[b_loads];
    auto load = [&](int) {
        const int left = channels - first;
#pragma unroll
        for (int l = 0; l < a_loads; ++l)
            a_next[l] = load4(packed + (a_offset + l * a_rows * pitch), a_inside && a_row + l * a_rows < left);
#pragma unroll
        for (int l = 0; l < b_loads; ++l)
            b_next[l] = inside && b_row + l * b_rows < left ? (float)source[b_offset + l * b_rows * voxels] : 0.0f;
        first += bk, a_offset += bk * pitch, b_offset += bk * voxels;
        if (first < channels) return;
        first = 0;
        if (++j == volume.w.taps) j = 0, ++i;
        if (i == volume.h.taps) i = 0, ++a;
        aim();
    };
    auto store = [&](int buffer) {
#pragma unroll
        for (int l = 0; l < a_loads; ++l)
            *reinterpret_cast<float4*>(&a_tile[buffer][a_row + l * a_rows][a_column]) = a_next[l];
#pragma unroll
        for (int l = 0; l < b_loads; ++l) b_tile[buffer][b_row + l * b_rows][b_column] = b_next[l];
    };
    const int steps = volume.taps() * ((channels + bk - 1) / bk);
    if (steps == 0) return;
    aim();
    multiply_steps<Tiles>(a_tile, b_tile, row, column, steps, sum, load, store);
}

// Store four values with one store.
__device__ __forceinline__ void store_four_values(float* to, const float (&value)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
}
__device__ __forceinline__ void store_four_values(__nv_bfloat16* to, const float (&value)[4]) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(value[0], value[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(value[2], value[3]);
    *reinterpret_cast<uint2*>(to) =
        make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
}

// Store the sums to out [n][k][z][p][q], plus the bias; with `relu`, negative results become 0. `filter0`: the group's
// first filter; row and column: the thread's first ones in the group and in the volume. `fours`: outputs are
// contiguous, and a volume is a multiple of 4.
template <class Tiles, bool with_bias, bool relu, bool fours, class T>
__device__ __forceinline__ void store_volume(const float (&sum)[8][8], T* __restrict__ out, const T* __restrict__ bias,
                                             const VolumeSizes& size, const Volume& volume, int filter0, int row,
                                             int column) {
    const int voxels = size.z * size.p * size.q, outputs = volume.outputs();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = column + half * 4 * Tiles::lanes_n;
        size_t place[4];
#pragma unroll
        for (int j = 0; j < (fours ? 1 : 4); ++j) {
            const int at = volume.place(volume.output(m + j), size.z, size.p, size.q);
            place[j] = (size_t)(at / voxels) * size.k * voxels + at % voxels;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int filter = row + i % 4 + i / 4 * 4 * Tiles::lanes_m;
            if (filter >= size.group_filters) continue;
            const float shift = with_bias ? (float)bias[filter0 + filter] : 0.0f;
            T* plane = out + (size_t)(filter0 + filter) * voxels;
            float value[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                value[j] = sum[i][half * 4 + j] + shift;
                if (relu) value[j] = fmaxf(value[j], 0.0f);
            }
            if (fours) {
                if (m < outputs) store_four_values(plane + place[0], value);
            } else {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (m + j < outputs) plane[place[j]] = (T)value[j];
            }
        }
    }
}

}  // namespace opbench
