// /// opbench
// title     = "16-byte accesses, UNROLL vectors of one plane per thread, no barrier"
// builds_on = "plane_blocks"
// mechanism = ["coalesced", "vectorised_access", "fewer_barriers", "unrolled", "compile_time_sizes"]
// tune      = { UNROLL = [1, 2, 4], BLOCK = [256, 512], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"], epilogue = ["none", "relu"] }
// requires  = ["n * c * cdiv(h * w // lanes, UNROLL) <= 4294966272"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// RELU  = "epilogue == 'relu'"
// LANES = "lanes"
// C     = "c"
// PLANE = "h * w"
//
// [[launch]]
// kernel = "batchnorm2d_vectorised"
// grid   = ["cdiv(n * c * cdiv(h * w // lanes, UNROLL), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "scale", "shift", "mean", "variance", "out", "n * c"]
// ///
//
// Each thread computes factor and offset itself, from four loads that the threads of a plane share, while its own loads
// of x are already in flight. So no thread waits for another. With a flat index, no thread is idle on small planes.
// STREAM marks x and out evict-first in L2. Limit: HBM.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
// vectors, and groups of UNROLL vectors, of a plane
constexpr int VECTORS = PLANE / LANES, GROUPS = (VECTORS + UNROLL - 1) / UNROLL;

typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(BLOCK)
    batchnorm2d_vectorised(const Pack* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ shift,
                           const T* __restrict__ mean, const T* __restrict__ variance, Pack* __restrict__ out,
                           unsigned planes) {
    // x, out [planes][VECTORS]; the others [C]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= planes * GROUPS) return;
    const unsigned plane = i / GROUPS;
    const int first = (int)(i % GROUPS);  // then every GROUPS-th vector after it
    const size_t base = (size_t)plane * VECTORS + first;
    Pack v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (VECTORS % UNROLL == 0 || first + u * GROUPS < VECTORS) v[u] = load_packed<STREAM>(x + base + u * GROUPS);
    }
    const int channel = (int)(plane % C);
    const float factor = (float)scale[channel] * rsqrtf((float)variance[channel] + 1e-5f);
    const float offset = (float)shift[channel] - (float)mean[channel] * factor;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (VECTORS % UNROLL != 0 && first + u * GROUPS >= VECTORS) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            T& element = reinterpret_cast<T*>(&v[u])[lane];
            float value = (float)element * factor + offset;
#if RELU
            value = fmaxf(value, 0.0f);
#endif
            element = (T)value;
        }
        store_packed<STREAM>(out + base + u * GROUPS, v[u]);
    }
}
