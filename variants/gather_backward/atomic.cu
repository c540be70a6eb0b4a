// /// opbench
// title     = "one thread per element of dbatch, which adds it to the table with a float atomic"
// mechanism = ["scatter"]
// tune      = { BLOCK = [256, 128] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["rows <= 65535"]
// reproducible = false
//
// [[launch]]
// zero = "ddata"
//
// [[launch]]
// kernel = "gather_backward_atomic"
// grid   = ["cdiv(features, BLOCK)", "rows"]
// block  = ["BLOCK"]
// args   = ["dbatch", "order", "ddata", "features"]
// ///
//
// The first variant: a gather run backwards. Limit: atomics add in the order of arrival, so the bits vary from run to
// run, and training does not use this variant. The rows of a frequent token are added to the same addresses, where L2
// adds one at a time.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// dbatch [rows][features]; order [rows]; ddata [items][features], zero at the start
extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_backward_atomic(const T* __restrict__ dbatch, const int* __restrict__ order, float* __restrict__ ddata,
                           int features) {
    const int column = blockIdx.x * BLOCK + threadIdx.x, row = blockIdx.y;
    if (column >= features) return;
    atomicAdd(ddata + (size_t)order[row] * features + column, (float)dbatch[(size_t)row * features + column]);
}
