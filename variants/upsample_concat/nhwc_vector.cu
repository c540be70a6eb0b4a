// /// opbench
// title     = "nhwc: 16-byte accesses along the channels, one thread for the 2 x 2 outputs of a pixel of low"
// builds_on = "sizes_constant"
// mechanism = ["coalesced", "vectorised_access", "register_tile", "compile_time_sizes"]
// tune      = { COLUMNS = [1, 2], BLOCK = [256, 128], STREAM = [0, 1] }
// supports  = { layout = ["nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * h * w <= 4294966272"]
//
// [define]
// BF16  = "dtype == 'bf16'"
// LANES = "lanes"
// BYTES = "(2 if dtype == 'bf16' else 4) * LANES"
// PACK  = "'unsigned short' if BYTES == 2 else 'unsigned' if BYTES == 4 else 'uint2' if BYTES == 8 else 'uint4'"
// C1    = "c1"
// C2    = "c2"
// H     = "h"
// W     = "w"
//
// [[launch]]
// kernel = "upsample_concat_nhwc_vector"
// grid   = ["cdiv(n * h * cdiv(w, COLUMNS) * (c // lanes), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["low", "skip", "out", "n"]
// ///
//
// Consecutive threads write consecutive vectors of one pixel's channels, first those of skip, then those of low. A
// thread for skip copies four pixels with four loads in flight; a thread for low writes one load four times. So no byte
// is loaded twice. The threads of one warp may diverge into two paths, which costs instructions but no bytes. STREAM
// marks the loads of skip and all stores evict-first in L2. Limit: HBM.
#if BF16
typedef unsigned short T;
#else
typedef float T;
#endif
constexpr int PACKS1 = C1 / LANES, PACKS2 = C2 / LANES, PACKS = PACKS1 + PACKS2;  // vectors of a pixel
constexpr int P = 2 * H, Q = 2 * W;
constexpr int COLUMN_GROUPS = (W + COLUMNS - 1) / COLUMNS;
typedef PACK Pack;  // the vector of one load or store

__device__ __forceinline__ Pack load(const Pack* source) { return STREAM ? __ldcs(source) : *source; }

__device__ __forceinline__ void store(Pack* target, Pack pack) {
    if (STREAM) {
        __stcs(target, pack);
    } else {
        *target = pack;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_nhwc_vector(const Pack* __restrict__ low, const Pack* __restrict__ skip, Pack* __restrict__ out,
                                int n) {
    // low [n][H][W][PACKS1]; skip [n][P][Q][PACKS2]; out [n][P][Q][PACKS]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)(H * COLUMN_GROUPS * PACKS)) return;
    const int pack = (int)(i % PACKS);
    const int column = (int)(i / PACKS % COLUMN_GROUPS) * COLUMNS;  // column of low
    const size_t row = i / PACKS / COLUMN_GROUPS;                   // row of low, numbered through all images
    const size_t pixel = 2 * row * Q + 2 * column;                  // pixel of skip and out
    Pack* target = out + pixel * PACKS + pack;
    if (pack < PACKS2) {
        const Pack* source = skip + pixel * PACKS2 + pack;
        Pack v[2][2 * COLUMNS];
#pragma unroll
        for (int k = 0; k < 4 * COLUMNS; ++k) {
            const int r = k / (2 * COLUMNS), z = k % (2 * COLUMNS);
            if (W % COLUMNS == 0 || column + z / 2 < W) v[r][z] = load(source + (r * Q + z) * PACKS2);
        }
#pragma unroll
        for (int k = 0; k < 4 * COLUMNS; ++k) {
            const int r = k / (2 * COLUMNS), z = k % (2 * COLUMNS);
            if (W % COLUMNS == 0 || column + z / 2 < W) store(target + (r * Q + z) * PACKS, v[r][z]);
        }
    } else {
        const Pack* source = low + (row * W + column) * PACKS1 + (pack - PACKS2);
        Pack v[COLUMNS];
#pragma unroll
        for (int z = 0; z < COLUMNS; ++z) {
            if (W % COLUMNS == 0 || column + z < W) v[z] = source[z * PACKS1];
        }
#pragma unroll
        for (int k = 0; k < 4 * COLUMNS; ++k) {
            const int r = k / (2 * COLUMNS), z = k % (2 * COLUMNS);
            if (W % COLUMNS == 0 || column + z / 2 < W) store(target + (r * Q + z) * PACKS, v[z / 2]);
        }
    }
}
