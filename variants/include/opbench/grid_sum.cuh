// A sum by all threads of a grid.
#pragma once

namespace opbench {

// Return the sum of this thread's share of x [n], aligned to 16 bytes, read as float4 with `loads` loads in flight. All
// blocks have `threads` threads.
template <int threads, int loads>
__device__ __forceinline__ float grid_stride_sum(const float* __restrict__ x, unsigned n) {
    const unsigned whole = n / 4;
    const unsigned stride = gridDim.x * threads;
    const unsigned thread = blockIdx.x * threads + threadIdx.x;
    const float4* x4 = reinterpret_cast<const float4*>(x);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (unsigned first = thread; first < whole; first += loads * stride) {
        float4 v[loads];
#pragma unroll
        for (int u = 0; u < loads; ++u) {
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + u * stride < whole) v[u] = __ldcs(x4 + first + u * stride);
        }
#pragma unroll
        for (int u = 0; u < loads; ++u) {
            sum.x += v[u].x;
            sum.y += v[u].y;
            sum.z += v[u].z;
            sum.w += v[u].w;
        }
    }
    const unsigned rest = 4 * whole + thread;  // the first threads add the last n % 4 elements
    if (thread < 4 && rest < n) sum.x += x[rest];
    return (sum.x + sum.y) + (sum.z + sum.w);
}

}  // namespace opbench
