// Winograd's F(2x2, 3x3) without its matrix products: transforms of filters and patches, four channels at a time, and
// of 2 x 2 outputs. A filter of size 5 is treated as one of size 3 plus one of size 2, shifted by 3, along each axis: 4
// + 3 points.
#pragma once

#include <opbench/epilogue.cuh>

namespace opbench {

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 operator*(float a, float4 b) {
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

constexpr int winograd_points(int size) { return size == 3 ? 4 : 7; }  // products for 2 outputs, along each axis

// One axis: products of (G g)[i] and (Bt d)[i]; the outputs are At m.
// G = [1 0 0 0 0; 1/2 1/2 1/2 0 0; 1/2 -1/2 1/2 0 0; 0 0 1 0 0; 0 0 0 1 0; 0 0 0 1 1; 0 0 0 0 1]
template <int size>
__device__ __forceinline__ float4 filter_point(int i, const float4 (&g)[size]) {
    if (i == 1) return 0.5f * (g[0] + g[2]) + 0.5f * g[1];
    if (i == 2) return 0.5f * (g[0] + g[2]) - 0.5f * g[1];
    if (i == 5) return g[size - 2] + g[size - 1];
    return i == 0 ? g[0] : i == 3 ? g[2] : i == 4 ? g[size - 2] : g[size - 1];
}
// Bt = [1 0 -1 0 0 0; 0 1 1 0 0 0; 0 -1 1 0 0 0; 0 1 0 -1 0 0; 0 0 0 1 -1 0; 0 0 0 0 1 0; 0 0 0 0 -1 1]
template <int patch>
__device__ __forceinline__ float4 patch_point(int i, const float4 (&d)[patch]) {
    if (i == 0) return d[0] - d[2];
    if (i == 1) return d[1] + d[2];
    if (i == 2) return d[2] - d[1];
    if (i == 3) return d[1] - d[3];
    if (i == 4) return d[3] - d[patch - 2];
    return i == 5 ? d[patch - 2] : d[patch - 1] - d[patch - 2];
}
// At = [1 1 1 0 1 1 0; 0 1 -1 -1 0 1 1]
__device__ __forceinline__ float output_factor(int output, int i) {
    return output == 0 ? (0x37 >> i & 1) : (0x62 >> i & 1) - (0x0c >> i & 1);
}

// Call store(points * i + j, value) with G g Gt; load(size * i + j) returns g.
template <int size, class Load, class Store>
__device__ __forceinline__ void transform_filter(Load load, Store store) {
    constexpr int points = winograd_points(size);
    float4 rows[points][size];
#pragma unroll
    for (int j = 0; j < size; ++j) {
        float4 column[size];
#pragma unroll
        for (int i = 0; i < size; ++i) column[i] = load(i * size + j);
#pragma unroll
        for (int i = 0; i < points; ++i) rows[i][j] = filter_point(i, column);
    }
#pragma unroll
    for (int i = 0; i < points; ++i)
#pragma unroll
        for (int j = 0; j < points; ++j) store(i * points + j, filter_point(j, rows[i]));
}

// Transform filters [k][size][size][c] to [points][points][k][c] with store(vector, value); a thread has four channels
// of one filter.
template <int size, class Store>
__device__ __forceinline__ void transform_filters(const float* weight, int k, int c, Store store) {
    const int quads = c / 4, index = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (index >= k * quads) return;
    const size_t first = (size_t)(index / quads) * size * size * quads + index % quads;
    const float4* from = reinterpret_cast<const float4*>(weight) + first;
    transform_filter<size>([&](int tap) { return from[tap * quads]; },
                           [&](int product, float4 value) { store((size_t)product * k * quads + index, value); });
}
// The same for filters rotated by 180 degrees, to [points][points][c][k], for gradients; a thread has four k of one c.
template <int size, class Store>
__device__ __forceinline__ void transform_turned_filters(const float* weight, int k, int c, Store store) {
    const int quads = k / 4, index = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int channel = index % c, quad = index / c;
    if (quad >= quads) return;
    const size_t next = (size_t)size * size * c;  // elements from one filter to the next
    const float* from = weight + quad * 4 * next + channel;
    transform_filter<size>(
        [&](int tap) {
            const float* own = from + (size * size - 1 - tap) * c;
            return make_float4(own[0], own[next], own[2 * next], own[3 * next]);
        },
        [&](int product, float4 value) { store(((size_t)product * c + channel) * quads + quad, value); });
}

// image [n][h][w][c] -> patches [points][points][n][rows][columns][c]: Bt d B of the pixels d on which each 2 x 2
// outputs depend; a thread has four channels of one patch.
template <int size>
__device__ __forceinline__ void transform_patches(const float* image, float* patches, int n, int c, int h, int w,
                                                  int rows, int columns, int padding) {
    constexpr int points = winograd_points(size);
    const int quads = c / 4, index = (int)(blockIdx.x * blockDim.x + threadIdx.x), tiles = n * rows * columns;
    if (index >= tiles * quads) return;
    const int tile = index / quads, quad = index % quads;
    const int x0 = tile % columns * 2 - padding, y0 = tile / columns % rows * 2 - padding;
    const size_t first = (size_t)(tile / columns / rows) * h * w * quads + quad;
    const float4* from = reinterpret_cast<const float4*>(image) + first;
    float4 pixels[size + 1][size + 1];  // columns of the patch
#pragma unroll
    for (int j = 0; j < size + 1; ++j)
#pragma unroll
        for (int i = 0; i < size + 1; ++i) {
            const int y = y0 + i, x = x0 + j;
            const bool inside = y >= 0 && y < h && x >= 0 && x < w;
            pixels[j][i] = inside ? from[((size_t)y * w + x) * quads] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    float4* to = reinterpret_cast<float4*>(patches) + index;
#pragma unroll
    for (int i = 0; i < points; ++i) {
        float4 row[size + 1];
#pragma unroll
        for (int j = 0; j < size + 1; ++j) row[j] = patch_point(i, pixels[j]);
#pragma unroll
        for (int j = 0; j < points; ++j) to[(size_t)(i * points + j) * tiles * quads] = patch_point(j, row);
    }
}

// Store the outputs 2 i + j of a warp's tiles through the stages' memory. `place(row, output)` returns the index of the
// pixel of a tile's output, or -1; finish(element of the output, its column, four sums) stores it.
template <class Block, class Place, class Finish>
__device__ __forceinline__ void store_outputs(const typename Block::Sums (&sum)[4], void* memory, int column0,
                                              int columns, Place place, Finish finish) {
    constexpr int pitch = Block::wn + 8, per_row = Block::wn / 4;
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
    float* staged = static_cast<float*>(memory) + threadIdx.x / 32 * 16 * pitch;
#pragma unroll
    for (int part = 0; part < Block::tm * 4; ++part) {
        const int mi = part / 4, output = part % 4;
#pragma unroll
        for (int e = 0; e < Block::tn * 2; ++e) {
            const int ni = e / 2, half = e % 2;
            store_pair(staged + (lane / 4 + half * 8) * pitch + ni * 8 + column, sum[output][mi][ni][half * 2],
                       sum[output][mi][ni][half * 2 + 1]);
        }
        __syncwarp();
#pragma unroll
        for (int e = lane; e < 16 * per_row; e += 32) {
            const int at = column0 + e % per_row * 4, pixel = place(mi * 16 + e / per_row, output);
            if (pixel < 0 || at >= columns) continue;
            finish((size_t)pixel * columns + at, at,
                   *reinterpret_cast<const float4*>(staged + e / per_row * pitch + e % per_row * 4));
        }
        __syncwarp();
    }
}

}  // namespace opbench
