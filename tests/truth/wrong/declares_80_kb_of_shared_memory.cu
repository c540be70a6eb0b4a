// /// opbench
// operator = "copy"
// title    = "80 KB of static shared memory"
// launch   = [{ kernel = "declares_80_kb_of_shared_memory", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A GPU has 48 KB for static arrays; more must be dynamic.
// expect: 81920 bytes of static shared memory
extern "C" __global__ void declares_80_kb_of_shared_memory(const float* x, float* out, int n) {
    __shared__ float tile[20480];
    const int i = blockIdx.x * 256 + threadIdx.x, j = blockIdx.x * 256 + 255 - threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (j < n) out[j] = tile[255 - threadIdx.x];
}
