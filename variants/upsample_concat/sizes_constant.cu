// /// opbench
// title     = "all sizes as compile-time constants: divisions become multiplications and shifts"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "compile_time_sizes"]
// tune      = { BLOCK = [256, 128, 512] }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["n * c * p * q <= 4294966272"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// NHWC = "layout == 'nhwc'"
// C1   = "c1"
// C2   = "c2"
// P    = "p"
// Q    = "q"
//
// [[launch]]
// kernel = "upsample_concat_sizes_constant"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["low", "skip", "out", "n"]
// ///
//
// Divisions by constants need only a few instructions, so memory is the limit and no longer arithmetic. Limits: each
// thread loads and stores one element, so too few bytes are in flight; each pixel of low is fetched four times.
#if BF16
typedef unsigned short T;  // elements are copied, never looked into
#else
typedef float T;
#endif
constexpr int C = C1 + C2;

extern "C" __global__ void __launch_bounds__(BLOCK)
    upsample_concat_sizes_constant(const T* __restrict__ low, const T* __restrict__ skip, T* __restrict__ out, int n) {
    // nchw: low n C1 P/2 Q/2, skip n C2 P Q, out n C P Q; nhwc likewise with the channels last; below 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)(C * P * Q)) return;
#if NHWC
    const unsigned channel = i % C, column = i / C % Q, row = i / C / Q % P;
    const size_t image = i / C / Q / P;
    if (channel < C2) {
        out[i] = skip[((image * P + row) * Q + column) * C2 + channel];
    } else {
        out[i] = low[((image * (P / 2) + row / 2) * (Q / 2) + column / 2) * C1 + (channel - C2)];
    }
#else
    const unsigned column = i % Q, row = i / Q % P, channel = i / Q / P % C;
    const size_t image = i / Q / P / C;
    if (channel < C2) {
        out[i] = skip[((image * C2 + channel) * P + row) * Q + column];
    } else {
        out[i] = low[((image * C1 + (channel - C2)) * (P / 2) + row / 2) * (Q / 2) + column / 2];
    }
#endif
}
