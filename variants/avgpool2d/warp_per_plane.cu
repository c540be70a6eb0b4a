// /// opbench
// title     = "global pooling: one warp per plane, sums added by warp shuffles"
// builds_on = "multi_output"
// mechanism = ["coalesced", "vectorised_access", "unrolled", "warp_shuffle", "compile_time_sizes"]
// tune      = { PLANES = [8, 4, 2] }
// supports  = { divisor = ["window", "inside"], dtype = ["f32", "bf16"] }
// requires  = ["window == h and window == w and padding == 0", "n * c <= 2147483640"]
//
// [define]
// BF16   = "dtype == 'bf16'"
// PIXELS = "h * w"
//
// [[launch]]
// kernel = "avgpool2d_warp_per_plane"
// grid   = ["cdiv(n * c, PLANES)"]
// block  = ["32", "PLANES"]
// args   = ["x", "out", "n * c"]
// ///
//
// If the window is the whole image, as before a classifier or in squeeze-and-excitation, there is one output per plane.
// One thread per output would leave most of the GPU idle and read with a stride of a plane. Here a warp reads its plane
// in vectors of up to 16 bytes, four in flight per lane. Limit: HBM; for few planes the latency of the loads.
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int LANES = widest_vector(16 / sizeof(T), PIXELS, PIXELS);
constexpr int VECTORS = PIXELS / LANES;
typedef Packed<T, LANES> Pack;

extern "C" __global__ void __launch_bounds__(32 * PLANES)
    avgpool2d_warp_per_plane(const Pack* __restrict__ x, T* __restrict__ out, int planes) {
    // x [planes][VECTORS]; out [planes]
    const int plane = blockIdx.x * PLANES + threadIdx.y;
    if (plane >= planes) return;  // true for whole warps only, so shuffles stay safe
    const Pack* source = x + (size_t)plane * VECTORS;
    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < VECTORS; i += 32) {
        const Pack pack = source[i];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) sum += lane_of<T>(pack, lane);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[plane] = (T)(sum * (1.0f / PIXELS));
}
