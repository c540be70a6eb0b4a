// /// opbench
// title     = "one block per table row searches all indices for its own: no atomics, reproducible bits"
// builds_on = "atomic"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [256, 128] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { dtype = ["f32", "bf16"] }
// requires  = ["cdiv(features, BLOCK) <= 65535"]
//
// [[launch]]
// kernel = "gather_backward_scan_indices"
// grid   = ["items", "cdiv(features, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["dbatch", "order", "ddata", "rows", "features"]
// ///
//
// Each block writes a part of one row of the result. It searches all indices, adds the rows with its index in their
// order, and writes zeros if there is none. Limit: every block reads all indices from L2, items * rows of them in
// total, and only `rows` of them match.
#if BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
#else
typedef float T;
#endif

// dbatch [rows][features]; order [rows]; ddata [items][features]
extern "C" __global__ void __launch_bounds__(BLOCK)
    gather_backward_scan_indices(const T* __restrict__ dbatch, const int* __restrict__ order, float* __restrict__ ddata,
                                 int rows, int features) {
    __shared__ int indices[BLOCK];
    const int item = blockIdx.x, column = blockIdx.y * BLOCK + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < rows; first += BLOCK) {
        const int row = first + threadIdx.x, index = row < rows ? order[row] : -1;
        if (!__syncthreads_or(index == item)) continue;  // which waits, too, until `indices` has been read
        indices[threadIdx.x] = index;
        __syncthreads();
        for (int i = 0; i < BLOCK; ++i) {
            if (indices[i] == item && column < features) sum += (float)dbatch[(size_t)(first + i) * features + column];
        }
    }
    if (column < features) ddata[(size_t)item * features + column] = sum;
}
