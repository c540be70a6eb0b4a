// /// opbench
// title     = "16-byte stores: a thread writes a vector of outputs in scale rows, for ROWS input rows"
// builds_on = "quad"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { ROWS = [1, 2, 4], BLOCK = [256, 128], STREAM = [0, 1] }
// supports  = { mode = ["nearest", "bilinear"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * cdiv(h, ROWS) * w <= 4294966272", "scale <= 8"]
//
// [define]
// BF16     = "dtype == 'bf16'"
// BILINEAR = "mode == 'bilinear'"
// H        = "h"
// W        = "w"
// S        = "scale"
//
// [[launch]]
// kernel = "upsample2d_vectorised"
// grid   = ["cdiv(n * c * cdiv(h, ROWS) * cdiv(w, columns), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// At scale 2, a thread loads 2 floats (4 bf16) with one instruction and writes two rows of one 16-byte vector each, all
// contiguous across the warp: a quarter (in bf16 an eighth) of the requests, and one instruction writes whole sectors.
// In bilinear mode, a thread interpolates each input row horizontally once and uses it for several output rows, so ROWS
// rows of pixels need ROWS + 2 rows of loads. Four fifths of all bytes are stores, for which no thread waits. STREAM
// marks them evict-first in L2. Limit: HBM. If the width is not a multiple of a vector, accesses are narrower.

#include <opbench/upsampling.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Phases<S> Phase;
constexpr int LANES = 16 / sizeof(T);
// pixels that a thread's outputs depend on
constexpr int COLUMNS = LANES % S == 0 && W % (LANES / S) == 0 ? LANES / S : 1;
constexpr int OUTPUTS = COLUMNS * S;
constexpr int STORE = OUTPUTS % LANES == 0 ? LANES : OUTPUTS % 4 == 0 ? 4 : OUTPUTS % 2 == 0 ? 2 : 1;
constexpr int COLUMN_GROUPS = W / COLUMNS, ROW_GROUPS = (H + ROWS - 1) / ROWS;

typedef Packed<T, COLUMNS> Loaded;
typedef Packed<T, STORE> Stored;

__device__ __forceinline__ void store(T* target, const T (&values)[OUTPUTS]) {
#pragma unroll
    for (int k = 0; k < OUTPUTS; k += STORE) {
        Stored pack;
#pragma unroll
        for (int lane = 0; lane < STORE; ++lane) reinterpret_cast<T*>(&pack)[lane] = values[k + lane];
#if STREAM
        __stcs(reinterpret_cast<Stored*>(target + k), pack);
#else
        *reinterpret_cast<Stored*>(target + k) = pack;
#endif
    }
}

#if BILINEAR
// Interpolate one input row horizontally, for OUTPUTS outputs. This needs one pixel to the left and one to the right of
// the COLUMNS pixels; at the image's border the last pixel is repeated.
__device__ __forceinline__ void interpolate_across(const T* row, int column, float (&across)[OUTPUTS]) {
    float v[COLUMNS + 2];
    const Loaded pack = *reinterpret_cast<const Loaded*>(row + column);
    v[0] = (float)row[max(column - 1, 0)];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) v[1 + j] = (float)reinterpret_cast<const T*>(&pack)[j];
    v[COLUMNS + 1] = (float)row[min(column + COLUMNS, W - 1)];
#pragma unroll
    for (int k = 0; k < OUTPUTS; ++k) {
        const int left = k / S + (Phase::before(k % S) ? 0 : 1);
        across[k] = between(v[left], v[left + 1], Phase::weight(k % S));
    }
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample2d_vectorised(const T* __restrict__ x, T* __restrict__ out, int planes) {
    // x [planes][H][W]; out [planes][H * S][W * S], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)planes * (unsigned)(ROW_GROUPS * COLUMN_GROUPS)) return;
    const int column = (int)(i % COLUMN_GROUPS) * COLUMNS;
    const int row = (int)(i / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
    const size_t plane = i / COLUMN_GROUPS / ROW_GROUPS;
    const T* image = x + plane * ((size_t)H * W);
    T* target = out + (plane * (H * S) + (size_t)row * S) * (W * S) + column * S;
#if BILINEAR
    float across[ROWS + 2][OUTPUTS];
#pragma unroll
    for (int k = 0; k < ROWS + 2; ++k) {
        interpolate_across(image + (size_t)min(max(row + k - 1, 0), H - 1) * W, column, across[k]);
    }
#pragma unroll
    for (int r = 0; r < ROWS * S; ++r) {
        if (H % ROWS != 0 && row + r / S >= H) break;
        const int top = r / S + (Phase::before(r % S) ? 0 : 1);
        T values[OUTPUTS];
#pragma unroll
        for (int k = 0; k < OUTPUTS; ++k)
            values[k] = (T)between(across[top][k], across[top + 1][k], Phase::weight(r % S));
        store(target + (size_t)r * (W * S), values);
    }
#else
    Loaded pack[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (H % ROWS != 0 && row + r >= H) break;
        pack[r] = *reinterpret_cast<const Loaded*>(image + (size_t)(row + r) * W + column);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (H % ROWS != 0 && row + r >= H) break;
        T values[OUTPUTS];
#pragma unroll
        for (int k = 0; k < OUTPUTS; ++k) values[k] = reinterpret_cast<const T*>(&pack[r])[k / S];
#pragma unroll
        for (int s = 0; s < S; ++s) store(target + (size_t)(r * S + s) * (W * S), values);
    }
#endif
}
