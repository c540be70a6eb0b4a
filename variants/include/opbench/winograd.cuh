// What Winograd's F(2x2, 3x3) takes besides matrix products: four channels at once, filters, and 2 x 2 outputs.
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

// store(4 i + j, value) of G g Gt with G = [1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1], g the 3 x 3 numbers from `from`
// on, `step` apart.
template <class Store>
__device__ __forceinline__ void transform_filter(const float4* from, int step, Store store) {
    float4 columns[4][3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        const float4 g0 = from[j * step], g1 = from[(3 + j) * step], g2 = from[(6 + j) * step];
        const float4 outer = 0.5f * (g0 + g2), inner = 0.5f * g1;
        columns[0][j] = g0, columns[1][j] = outer + inner, columns[2][j] = outer - inner, columns[3][j] = g2;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 outer = 0.5f * (columns[i][0] + columns[i][2]), inner = 0.5f * columns[i][1];
        store(i * 4, columns[i][0]);
        store(i * 4 + 1, outer + inner);
        store(i * 4 + 2, outer - inner);
        store(i * 4 + 3, columns[i][2]);
    }
}

// Sums of the outputs 2 i + j of a warp's tiles: bias, ReLU, 16-byte stores through the stages' memory. `place(row,
// output)` says where a tile's output lies, as a pixel's number, or -1.
template <class Block, bool with_bias, bool with_relu, class Place>
__device__ __forceinline__ void store_outputs(const typename Block::Sums (&sum)[4], void* memory, float* out,
                                              const float* bias, int column0, int columns, Place place) {
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
            const float4 found = *reinterpret_cast<const float4*>(staged + e / per_row * pitch + e % per_row * 4);
            store_four<with_bias, with_relu>(out + ((size_t)pixel * columns + at), found, bias + (with_bias ? at : 0),
                                             columns - at, columns % 4 == 0);
        }
        __syncwarp();
    }
}

}  // namespace opbench
