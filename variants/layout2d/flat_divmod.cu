// /// opbench
// title    = "one thread per output, flat grid: the source by division and remainder"
// mechanism = ["flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BF16 = "dtype == 'bf16'" }
// supports = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
// requires = ["n * rows * cols <= 4294966272"]
//
// [[launch]]
// kernel = "layout2d_flat_divmod"
// grid   = ["cdiv(n * rows * cols, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n", "rows", "cols"]
// ///
//
// Stores are contiguous across the warp, but loads are a whole row of x apart: of each 32-byte sector, a load uses one
// element, and the caches must keep the rest until other loads use it. With three channels, as in a network's first
// image, they do, and there it is hard to be faster than this variant. Limits: the sectors, and the divisions.
#if BF16
typedef unsigned short T;  // the bits of a bf16, because this kernel only copies
#else
typedef float T;
#endif

extern "C" __global__ void layout2d_flat_divmod(const T* __restrict__ x, T* __restrict__ out, int n, int rows,
                                                int cols) {
    // x [n][rows][cols]; out [n][cols][rows], fewer than 2^32 elements
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n * (unsigned)rows * (unsigned)cols) return;
    const unsigned row = i % (unsigned)rows, column = i / (unsigned)rows % (unsigned)cols;
    const unsigned image = i / (unsigned)rows / (unsigned)cols;
    out[i] = x[((size_t)image * rows + row) * cols + column];
}
