// Transpose a matrix of floats, because wgmma reads TF32 operands only by k.
#pragma once

namespace opbench {

// out [columns][rows] = in [rows][columns]; sizes and pitches (elements from one row's start to the next) are divisible
// by 4. A block of 256 threads transposes 64 x 64 elements, with float4 loads and stores.
__device__ __forceinline__ void transpose_tile(const float* __restrict__ in, float* __restrict__ out, int rows,
                                               int columns, int in_pitch, int out_pitch) {
    __shared__ float tile[64][65];
    const int column0 = blockIdx.x * 64, row0 = blockIdx.y * 64;
    const int line = threadIdx.x / 16, four = threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = line; i < 64; i += 16) {
        if (row0 + i >= rows || column0 + four >= columns) continue;
        const float4 x = *reinterpret_cast<const float4*>(in + (size_t)(row0 + i) * in_pitch + column0 + four);
        tile[i][four] = x.x, tile[i][four + 1] = x.y, tile[i][four + 2] = x.z, tile[i][four + 3] = x.w;
    }
    __syncthreads();
#pragma unroll
    for (int i = line; i < 64; i += 16) {
        if (column0 + i >= columns || row0 + four >= rows) continue;
        *reinterpret_cast<float4*>(out + (size_t)(column0 + i) * out_pitch + row0 + four) =
            make_float4(tile[four][i], tile[four + 1][i], tile[four + 2][i], tile[four + 3][i]);
    }
}

}  // namespace opbench
