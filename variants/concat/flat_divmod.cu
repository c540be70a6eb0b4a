// /// opbench
// title    = "one thread per element, flat grid: pixel and channel by division and remainder"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'", NHWC = "layout == 'nhwc'" }
// supports = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires = ["n * c * h * w <= 4294966272"]
//
// [[launch]]
// kernel = "concat_flat_divmod"
// grid   = ["cdiv(n * c * h * w, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["a", "b", "out", "n", "c1", "c2", "h * w"]
// ///
//
// The first variant: loads and stores are contiguous across the warp, except at the boundaries between a and b. Limits:
// integer divisions by sizes known only at run time, and one element per load and store.
#if BF16
typedef unsigned short T;  // the bits of a bf16, because this kernel only copies
#else
typedef float T;
#endif

extern "C" __global__ void concat_flat_divmod(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out,
                                              int n, int c1, int c2, int plane) {
    // nchw: out n c1+c2 plane, a n c1 plane, b n c2 plane; nhwc likewise with the channels last; below 2^32 elements
    const unsigned c = (unsigned)(c1 + c2);
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * c * (unsigned)plane) return;
#if NHWC
    const unsigned channel = i % c, pixel = i / c;
    const size_t in_a = (size_t)pixel * c1 + channel, in_b = (size_t)pixel * c2 + channel - c1;
#else
    const unsigned pixel = i % (unsigned)plane, channel = i / (unsigned)plane % c, image = i / (unsigned)plane / c;
    const size_t in_a = ((size_t)image * c1 + channel) * plane + pixel;
    const size_t in_b = ((size_t)image * c2 + channel - c1) * plane + pixel;
#endif
    if (channel < (unsigned)c1) {
        out[i] = a[in_a];
    } else {
        out[i] = b[in_b];
    }
}
