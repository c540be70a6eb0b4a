// /// opbench
// operator = "sum"
// title    = "adds to a module variable that nobody resets"
// launch   = [{ kernel = "keeps_its_sum_in_a_variable", grid = ["1"], block = ["256"] }]
// ///
//
// Right in the first launch.
//
// refused: wrong-result
__device__ float total;
extern "C" __global__ void keeps_its_sum_in_a_variable(const float* x, float* out, int n) {
    for (int i = threadIdx.x; i < n; i += 256) atomicAdd(&total, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
}
