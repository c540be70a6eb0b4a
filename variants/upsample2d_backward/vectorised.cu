// /// opbench
// title     = "COLUMNS input pixels per thread, with vector loads of the output rows"
// builds_on = "scale_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [2, 4, 1, 8], BLOCK = [256, 128, 512] }
// supports  = { dtype = ["f32", "bf16"], mode = ["nearest", "bilinear"] }
// requires  = ["n * c * h * w <= 4294966272", "COLUMNS * scale <= 32"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// SCALE    = "scale"
// C        = "c"
// H        = "h"
// W        = "w"
//
// [[launch]]
// kernel = "upsample2d_backward_vectorised"
// grid   = ["cdiv(n * c * h * cdiv(w, COLUMNS), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dout", "dx", "n"]
// ///
//
// A thread computes COLUMNS small pixels; at scale 2 and COLUMNS = 2 it reads a float4 of each row of dout. For each
// small pixel it first sums up the elements of a row with the weights of their columns, and then multiplies the sum by
// the weight of the row. Bilinear rows contribute to two small rows, so they are read twice, the second time from a
// cache; the same holds for the vectors to the left and right. A vector is the widest that divides both the rows and a
// thread's pixels. Limit: HBM.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int P = SCALE * H, Q = SCALE * W;
constexpr int REACH = BILINEAR ? SCALE / 2 : 0;  // how far the outputs that use a pixel extend beyond its own outputs
constexpr int GROUPS = (W + COLUMNS - 1) / COLUMNS;
constexpr int WIDTH = widest_vector(BF16 ? 8 : 4, Q, COLUMNS* SCALE);
constexpr int SHIFT = (WIDTH - REACH % WIDTH) % WIDTH;  // columns loaded left of the first needed, to be aligned
constexpr int VECTORS = (SHIFT + COLUMNS * SCALE + 2 * REACH + WIDTH - 1) / WIDTH;
constexpr int OUT_WIDTH = W % COLUMNS != 0 ? 1 : sizeof(T) * COLUMNS <= 16 ? COLUMNS : 16 / sizeof(T);

// Return the weight, along one axis, of a small pixel in a large pixel of the forward pass. `offset` is the large
// pixel's distance from the first large pixel over the small one; `first` and `last`: the small pixel is the first or
// the last of its axis. Except at these borders, the compiler knows the weight.
__device__ __forceinline__ float weight(int offset, bool first, bool last) {
#if BILINEAR
    const int away = 2 * offset + 1 - SCALE;  // in units of 1 / (2 SCALE)
    if (away < 0 ? first : away > 0 && last) return 1.0f;
    return (float)(2 * SCALE - (away < 0 ? -away : away)) / (float)(2 * SCALE);
#else
    return 1.0f;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_backward_vectorised(const T* __restrict__ dout, T* __restrict__ dx, int n) {
    // dout [n][C][P][Q], dx [n][C][H][W], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (C * H * GROUPS)) return;
    const int z = (int)(i % GROUPS) * COLUMNS, y = (int)(i / GROUPS % H);
    const size_t plane = i / GROUPS / H;
    const T* gradient = dout + plane * ((size_t)P * Q);
    const int left = z * SCALE - REACH - SHIFT;  // a multiple of WIDTH
    float sum[COLUMNS] = {};
#pragma unroll
    for (int r = -REACH; r < SCALE + REACH; ++r) {
        const int row = y * SCALE + r;
        if (BILINEAR && (unsigned)row >= P) continue;
        Vector<T, WIDTH> v[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k) {
            const int column = left + k * WIDTH;  // inside a row or outside it, never across
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) v[k].lane(lane) = (T)0.0f;
            if ((unsigned)column < Q) {
                v[k] = *reinterpret_cast<const Vector<T, WIDTH>*>(gradient + (size_t)row * Q + column);
            }
        }
        const float share = weight(r, y == 0, y == H - 1);
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
            float line = 0.0f;
#pragma unroll
            for (int s = -REACH; s < SCALE + REACH; ++s) {
                const int at = SHIFT + REACH + k * SCALE + s;
                const float by = weight(s, z + k == 0, z + k == W - 1);
                line += by * (float)v[at / WIDTH].lane(at % WIDTH);
            }
            sum[k] += share * line;
        }
    }
    T* target = dx + (plane * H + y) * W + z;
#pragma unroll
    for (int k = 0; k < COLUMNS; k += OUT_WIDTH) {
        Vector<T, OUT_WIDTH> result;
#pragma unroll
        for (int lane = 0; lane < OUT_WIDTH; ++lane) result.lane(lane) = (T)sum[k + lane];
        if (W % COLUMNS == 0 || z + k < W) *reinterpret_cast<Vector<T, OUT_WIDTH>*>(target + k) = result;
    }
}
