// /// opbench
// operator = "copy"
// title    = "a kernel with a dynamic shared array, launched without a size for it"
// launch   = [{ kernel = "asks_for_no_dynamic_shared_memory", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// `shared` is missing in the launch.
// expect: The launch requests no dynamic shared memory
extern "C" __global__ void asks_for_no_dynamic_shared_memory(const float* x, float* out, int n) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * 256 + threadIdx.x, j = blockIdx.x * 256 + 255 - threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (j < n) out[j] = tile[255 - threadIdx.x];
}
