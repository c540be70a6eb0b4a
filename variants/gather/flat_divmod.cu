// /// opbench
// title    = "one thread per element, flat grid: the row by division"
// mechanism = ["coalesced", "flat_index"]
// tune     = { BLOCK = [256, 128, 512] }
// define   = { BYTES = "2 if dtype == 'bf16' else 4", SEVERAL = "batches == 'several'" }
// supports = { dtype = ["f32", "bf16", "i32"], batches = ["several", "one"] }
//
// [[launch]]
// kernel = "gather_flat_divmod"
// grid   = ["cdiv(rows * features, BLOCK)"]
// block  = ["BLOCK"]
// args   = ["data", "order", "step?", "batch", "features", "rows", "total"]
// ///
//
// The first variant: the table is in device memory, and the batch is gathered there without the host. Limits: every
// thread divides, and reads the same index as its neighbours; 4 bytes (2 in bf16) per access.
#if BYTES == 2
typedef unsigned short T;  // the bits of a bf16
#else
typedef unsigned T;
#endif

extern "C" __global__ void gather_flat_divmod(const T* __restrict__ data, const int* __restrict__ order,
#if SEVERAL
                                              const int* __restrict__ step,
#endif
                                              T* __restrict__ batch, int features, int rows, int total) {
    // data [items][features]; order [total]; step [1], counts from 1; batch [rows][features]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)rows * features) return;
    const unsigned row = i / features, feature = i % features;
#if SEVERAL
    const int place = (int)(((long long)(*step - 1) * rows + row) % total);
#else
    const int place = row;
#endif
    batch[i] = data[(size_t)order[place] * features + feature];
}
