// /// opbench
// title    = "one kernel, one thread per output, flat grid: coordinates by division and remainder"
// mechanism = ["coalesced", "flat_index", "fused"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'" }
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires = ["n * c * p * q <= 4294966272"]
//
// [[launch]]
// kernel = "upsample_concat_flat_divmod"
// grid   = ["cdiv(n * c * p * q, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["low", "skip", "out", "n", "c1", "c2", "p", "q"]
// ///
//
// Even the first variant writes no enlarged image: each output is loaded directly from skip or low, which saves writing
// and reading that image. Limits: three integer divisions by sizes known only at run time, and loads and stores of one
// element.
#if BF16
typedef unsigned short T;  // the bits of a bf16, because this kernel only copies
#else
typedef float T;
#endif

extern "C" __global__ void upsample_concat_flat_divmod(const T* __restrict__ low, const T* __restrict__ skip,
                                                       T* __restrict__ out, int n, int c1, int c2, int p, int q) {
    // nchw: low n c1 p/2 q/2, skip n c2 p q, out n c2+c1 p q; nhwc likewise with the channels last; below 2^32 elements
    const unsigned c = (unsigned)(c1 + c2);
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * c * (unsigned)p * (unsigned)q) return;
#if NHWC
    const unsigned channel = i % c, column = i / c % (unsigned)q, row = i / c / (unsigned)q % (unsigned)p;
    const size_t image = i / c / (unsigned)q / (unsigned)p;
#else
    const unsigned column = i % (unsigned)q, row = i / (unsigned)q % (unsigned)p;
    const unsigned channel = i / (unsigned)q / (unsigned)p % c;
    const size_t image = i / (unsigned)q / (unsigned)p / c;
#endif
    const int behind = (int)channel - c2;
#if NHWC
    out[i] = behind < 0 ? skip[((image * p + row) * q + column) * c2 + channel]
                        : low[((image * (p / 2) + row / 2) * (q / 2) + column / 2) * c1 + behind];
#else
    out[i] = behind < 0 ? skip[((image * c2 + channel) * p + row) * q + column]
                        : low[((image * c1 + behind) * (p / 2) + row / 2) * (q / 2) + column / 2];
#endif
}
