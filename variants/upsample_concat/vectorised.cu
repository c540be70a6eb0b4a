// /// opbench
// title     = "16-byte accesses: a thread writes one vector in two rows, copied from skip or upsampled from low"
// builds_on = "sizes_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { ROWS = [1, 2], BLOCK = [256, 128], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["n * c * h * w <= 4294966272"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// LANES = "lanes"
// C1    = "c1"
// C2    = "c2"
// H     = "h"
// W     = "w"
//
// [[launch]]
// kernel = "upsample_concat_vectorised"
// grid   = ["cdiv(n * c * cdiv(h, ROWS) * (q // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["low", "skip", "out", "n"]
// ///
//
// Rows 2k and 2k + 1 of the output have the same source in low, so one thread writes both and loads the source once: 8
// bytes for two 16-byte stores. In the channels of skip, a thread copies two vectors. Planes are long, so nearly every
// warp works only on low or only on skip. STREAM marks skip's loads and all stores evict-first. Limit: HBM.

#include <opbench/vectors.cuh>
using namespace opbench;

#if BF16
typedef unsigned short T;
#else
typedef float T;
#endif
constexpr int C = C1 + C2, P = 2 * H, Q = 2 * W;
constexpr int COLUMN_GROUPS = Q / LANES, ROW_GROUPS = (H + ROWS - 1) / ROWS;

// Words of a vector, which are copied and never looked into but to double them.
typedef Packed<T, LANES> Pack;
typedef Raw<sizeof(T) * LANES / 2>::type Half;

__device__ __forceinline__ Pack doubled(Half half) {
    Pack pack;
#pragma unroll
    for (int k = 0; k < LANES; ++k) reinterpret_cast<T*>(&pack)[k] = reinterpret_cast<const T*>(&half)[k / 2];
    return pack;
}

__device__ __forceinline__ Pack load(const T* source) {
#if STREAM
    return __ldcs(reinterpret_cast<const Pack*>(source));
#else
    return *reinterpret_cast<const Pack*>(source);
#endif
}

__device__ __forceinline__ void store(T* target, Pack pack) {
#if STREAM
    __stcs(reinterpret_cast<Pack*>(target), pack);
#else
    *reinterpret_cast<Pack*>(target) = pack;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_vectorised(const T* __restrict__ low, const T* __restrict__ skip, T* __restrict__ out, int n) {
    // low [n][C1][H][W]; skip [n][C2][P][Q]; out [n][C][P][Q]; all aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)(C * ROW_GROUPS * COLUMN_GROUPS)) return;
    const int column = (int)(i % COLUMN_GROUPS) * LANES;
    const int row = (int)(i / COLUMN_GROUPS % ROW_GROUPS) * ROWS;  // of low
    const int channel = (int)(i / COLUMN_GROUPS / ROW_GROUPS % C);
    const size_t image = i / COLUMN_GROUPS / ROW_GROUPS / C;
    T* target = out + ((image * C + channel) * P + 2 * row) * Q + column;
    if (channel < C2) {
        const T* source = skip + ((image * C2 + channel) * P + 2 * row) * Q + column;
        Pack v[2 * ROWS];
#pragma unroll
        for (int r = 0; r < 2 * ROWS; ++r) {
            if (H % ROWS == 0 || row + r / 2 < H) v[r] = load(source + (size_t)r * Q);
        }
#pragma unroll
        for (int r = 0; r < 2 * ROWS; ++r) {
            if (H % ROWS == 0 || row + r / 2 < H) store(target + (size_t)r * Q, v[r]);
        }
    } else {
        const T* source = low + ((image * C1 + channel - C2) * H + row) * W + column / 2;
        Half v[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (H % ROWS == 0 || row + r < H) v[r] = *reinterpret_cast<const Half*>(source + (size_t)r * W);
        }
#pragma unroll
        for (int r = 0; r < 2 * ROWS; ++r) {
            if (H % ROWS == 0 || row + r / 2 < H) store(target + (size_t)r * Q, doubled(v[r / 2]));
        }
    }
}
