// /// opbench
// title  = "one thread per row, sequential scan"
// tune   = { BLOCK = [64, 128, 256] }
//
// [supports]
// op        = ["sum", "prod"]
// kind      = ["inclusive", "exclusive"]
// direction = ["forward", "reverse"]
// mask      = ["none", "given"]
// dtype     = ["f32", "bf16"]
//
// [define]
// BF16      = "dtype == 'bf16'"
// PRODUCTS  = "op == 'prod'"
// EXCLUSIVE = "kind == 'exclusive'"
// REVERSE   = "direction == 'reverse'"
// MASKED    = "mask == 'given'"
//
// [[launch]]
// kernel = "scan_thread_per_row"
// grid   = ["cdiv(rows, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant: the definition. Limits: neighbouring threads read addresses that are a whole row apart, each step
// waits for the previous one, and few rows leave most of the GPU idle.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif
#if MASKED
#define MASK_ARGUMENT const unsigned char* __restrict__ mask,
#define COUNTS(place) (mask[place] != 0)
#else
#define MASK_ARGUMENT
#define COUNTS(place) true
#endif
constexpr float identity = PRODUCTS ? 1.0f : 0.0f;

__device__ __forceinline__ float combine(float a, float b) { return PRODUCTS ? a * b : a + b; }

extern "C" __global__ void scan_thread_per_row(const T* __restrict__ x, MASK_ARGUMENT T* __restrict__ out, int rows,
                                               int cols) {
    // x, mask, out [rows][cols]
    const int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    const size_t base = (size_t)row * cols;
    float running = identity;
    for (int i = 0; i < cols; ++i) {
        const size_t place = base + (REVERSE ? cols - 1 - i : i);
        const float before = running;
        if (COUNTS(place)) running = combine(running, (float)x[place]);
        out[place] = (T)(EXCLUSIVE ? before : running);
    }
}
