// /// opbench
// title     = "one thread per group, two passes along the axis"
// mechanism = ["no_division"]
// tune      = { BLOCK = [128, 256, 64] }
// supports  = { norm = ["l1", "l2", "mean_abs", "rms"] }
// define    = { SQUARES = "norm in ('l2', 'rms')", MEAN = "norm in ('mean_abs', 'rms')" }
// requires  = ["outer * inner < 2 ** 31"]
//
// [[launch]]
// kernel = "normalize_thread_per_group"
// grid   = ["cdiv(outer * inner, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The first variant. With inner > 1, neighbouring threads read neighbouring elements; with inner = 1, each thread reads
// its own row, 32 sectors per load of a warp. The second pass reads x again. Limits: those sectors; few groups leave
// most of the GPU idle. A single running sum would lose precision on long axes, so it uses Kahan summation.

// Return the factor for the elements of a group, from the sum of their absolute values or squares.
__device__ __forceinline__ float factor_of(float sum, int axis) {
    const float base = MEAN ? sum / (float)axis : sum;
    return SQUARES ? rsqrtf(base + (MEAN ? 1e-5f : 0.0f)) : 1.0f / base;
}
__device__ __forceinline__ float term(float x) { return SQUARES ? x * x : fabsf(x); }

// x, out [outer][axis][inner]
extern "C" __global__ void __launch_bounds__(BLOCK)
    normalize_thread_per_group(const float* __restrict__ x, float* __restrict__ out, int outer, int axis, int inner) {
    const unsigned group = blockIdx.x * BLOCK + threadIdx.x;
    if (group >= (unsigned)outer * (unsigned)inner) return;
    const size_t first = (size_t)(group / (unsigned)inner) * axis * inner + group % (unsigned)inner;
    float sum = 0.0f, excess = 0.0f;
    for (int i = 0; i < axis; ++i) {
        const float compensated = term(x[first + (size_t)i * inner]) - excess, next = sum + compensated;
        excess = (next - sum) - compensated;
        sum = next;
    }
    const float factor = factor_of(sum, axis);
    for (int i = 0; i < axis; ++i) out[first + (size_t)i * inner] = x[first + (size_t)i * inner] * factor;
}
