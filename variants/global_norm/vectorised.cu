// /// opbench
// title     = "16-byte accesses, UNROLL vectors in flight, a separate sum for each element of a vector"
// builds_on = "two_pass"
// mechanism = ["coalesced", "vectorised_access", "block_reduction", "warp_shuffle", "unrolled"]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [8, 4, 16], STREAM = [0, 1] }
// workspace = { partial = "cdiv(n, 4 * BLOCK * UNROLL)" }
//
// [[launch]]
// kernel = "squares_to_partials"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["gradient", "partial", "n"]
//
// [[launch]]
// kernel = "norm_of_partials"
// grid   = ["1"]
// block  = ["1024"]
// args   = ["partial", "limit", "norm", "factor", "cdiv(n, 4 * BLOCK * UNROLL)"]
// ///
//
// A thread issues all its loads before it adds, as in sum/two_pass. STREAM marks them evict-first; without STREAM, a
// gradient that fits in the L2 cache is still there when the optimiser reads it. Limit: HBM, reading only; for small
// gradients the launches.

// Return the sum of `value` over the block, added in a fixed order, in thread 0.
template <int THREADS>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warps[THREADS / 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x >= 32) return 0.0f;
    value = threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0.0f;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    squares_to_partials(const float* __restrict__ gradient, float* __restrict__ partial, int n) {
    // gradient [n], aligned to 16 bytes; partial: one sum per block
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const unsigned whole = (unsigned)n / 4;
    const float4* vectors = reinterpret_cast<const float4*>(gradient);
    float4 v[UNROLL], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < whole) v[u] = STREAM ? __ldcs(vectors + i) : vectors[i];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        sum.x += v[u].x * v[u].x;
        sum.y += v[u].y * v[u].y;
        sum.z += v[u].z * v[u].z;
        sum.w += v[u].w * v[u].w;
    }
    const unsigned rest = 4 * whole + threadIdx.x;  // block 0 handles the last n % 4 elements
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) sum.x += gradient[rest] * gradient[rest];
    const float total = block_sum<BLOCK>((sum.x + sum.y) + (sum.z + sum.w));
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(1024)
    norm_of_partials(const float* __restrict__ partial, const float* __restrict__ limit, float* __restrict__ norm,
                     float* __restrict__ factor, int count) {
    // partial [count]; limit, norm, factor [1]; one block of 1024 threads
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 1024) sum += partial[i];
    sum = block_sum<1024>(sum);
    if (threadIdx.x != 0) return;
    const float root = sqrtf(sum), ratio = limit[0] / (root + 1e-6f);
    norm[0] = root;
    factor[0] = ratio >= 1.0f ? 1.0f : ratio;  // NaN stays NaN
}
