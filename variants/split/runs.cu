// /// opbench
// title     = "no division: one grid dimension for the contiguous runs of a and b, one for the position in a run"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "no_division"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { layout = ["nchw", "nhwc"], dtype = ["f32", "bf16"] }
// requires  = ["run1 + run2 <= 2147483647 - BLOCK"]
//
// [[launch]]
// kernel = "split_runs"
// grid   = ["cdiv(run1 + run2, BLOCK)", "min(outer, 65535)"]
// block  = ["BLOCK"]
// args   = ["x", "a", "b", "outer", "run1", "run2"]
// ///
//
// In any layout, x consists of a run of a followed by a run of b, repeated: for every image in nchw, for every pixel in
// nhwc. Limits: one element per load and store; in nhwc a run is only as long as the channels, so a block is partly
// idle, and its threads loop over very many short runs.
#if BF16
typedef unsigned short T;  // the bits of a bf16, because this kernel only copies
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK)
    split_runs(const T* __restrict__ x, T* __restrict__ a, T* __restrict__ b, int outer, int run1, int run2) {
    // a [outer][run1]; b [outer][run2]; x [outer][run1 + run2]
    const int place = blockIdx.x * BLOCK + threadIdx.x;
    if (place >= run1 + run2) return;
    for (int k = blockIdx.y; k < outer; k += gridDim.y) {
        const size_t i = (size_t)k * (run1 + run2) + place;
        if (place < run1) {
            const size_t in_a = (size_t)k * run1 + place;
            a[in_a] = x[i];
        } else {
            const size_t in_b = (size_t)k * run2 + (place - run1);
            b[in_b] = x[i];
        }
    }
}
