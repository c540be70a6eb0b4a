// Partial results of a decoding step: blocks that share the tokens of a sequence store averages, which another kernel
// merges.
#pragma once

namespace opbench {

constexpr float no_score = -1e30f;  // below any score; unlike -infinity, its difference from itself is 0, not NaN

// Merge the partial results of one sequence and head into `depth` elements; their row is blockIdx.y * gridDim.x +
// blockIdx.x. averages [rows][parts][depth], not yet divided by their sums; statistics [rows][parts]: maximum and sum
// of weights
template <int depth, class T>
__device__ __forceinline__ void merge_parts(const float* averages, const float2* statistics, T* out, int parts) {
    const size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    averages += row * parts * depth, statistics += row * parts;
    for (int d = threadIdx.x; d < depth; d += blockDim.x) {
        float maximum = no_score, sum = 0.0f, average = 0.0f;
#pragma unroll 8
        for (int part = 0; part < parts; ++part) maximum = fmaxf(maximum, statistics[part].x);
#pragma unroll 8
        for (int part = 0; part < parts; ++part) {
            const float weight = __expf(statistics[part].x - maximum);
            sum += weight * statistics[part].y;
            average += weight * averages[(size_t)part * depth + d];
        }
        out[row * depth + d] = (T)(average / sum);
    }
}

}  // namespace opbench
