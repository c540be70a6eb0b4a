// /// opbench
// operator = "copy"
// title    = "warps wait for a flag in shared memory that no thread ever sets"
// launch   = [{ kernel = "waits_for_a_flag_nobody_sets", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The store that would end the wait stands behind it.
// expect: waits_for_a_flag_nobody_sets.cu:14: deadlock
extern "C" __global__ void waits_for_a_flag_nobody_sets(const float* x, float* out, int n) {
    __shared__ volatile int ready;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    while (ready == 0) {}
    if (threadIdx.x == 0) ready = 1;
    if (i < n) out[i] = x[i];
}
