// /// opbench
// title  = "one element per thread"
// mechanism = ["coalesced"]
// tune   = { BLOCK = [256, 512, 1024] }
//
// [[launch]]
// kernel = "fill_scalar"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// A warp writes 128 contiguous bytes, four whole sectors, so nothing has to be read first. Limit: the number of threads
// that are started for 4 bytes each.
extern "C" __global__ void fill_scalar(const float* __restrict__ value, float* __restrict__ out, int n) {
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < (unsigned)n) out[i] = value[0];
}
