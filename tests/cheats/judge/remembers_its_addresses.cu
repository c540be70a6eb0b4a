// /// opbench
// operator = "relu"
// title    = "skips the work for a pointer that it has seen"
// launch   = [{ kernel = "remembers_its_addresses", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Benchmarks launch on the same buffers again.
//
// refused: unwritten-output
__device__ float* seen[1024];
extern "C" __global__ void remembers_its_addresses(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    if (seen[blockIdx.x % 1024] == out + n) return;
    out[i] = fmaxf(x[i], 0.0f);
    __syncthreads();
    if (threadIdx.x == 0) seen[blockIdx.x % 1024] = out + n;
}
