// /// opbench
// operator = "sum"
// title    = "atomic additions to a shared total that starts with anything"
// launch   = [{ kernel = "adds_to_a_shared_total_nobody_zeroed", grid = ["1"], block = ["256"] }]
// ///
//
// Shared memory holds what the block before left there.
// expect: adds_to_a_shared_total_nobody_zeroed.cu:11: uninitialised-shared: atomic update of uninitialised shared memory
extern "C" __global__ void adds_to_a_shared_total_nobody_zeroed(const float* x, float* out, int n) {
    __shared__ float total;
    for (int i = threadIdx.x; i < n; i += 256) atomicAdd(&total, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
}
