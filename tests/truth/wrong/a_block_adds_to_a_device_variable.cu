// /// opbench
// operator = "sum"
// title    = "threads of one block add to a __device__ variable without atomics"
// launch   = [{ kernel = "a_block_adds_to_a_device_variable", grid = ["1"], block = ["256"] }]
// ///
//
// Two threads may read the same old total.
// expect: a_block_adds_to_a_device_variable.cu:15: global-race
__device__ float total;
extern "C" __global__ void a_block_adds_to_a_device_variable(const float* x, float* out, int n) {
    float own = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) own += x[i];
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    total += own;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
}
