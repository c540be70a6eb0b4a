// /// opbench
// operator = "sum"
// launch = [
//   { kernel = "start", grid = ["1"], block = ["1"], args = [] },
//   { kernel = "add", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "n"] },
//   { kernel = "finish", grid = ["1"], block = ["1"], args = ["out"] },
// ]
// ///
__device__ float total;
__global__ void start() { total = 0.0f; }
__global__ void add(const float* x, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) atomicAdd(&total, x[i]); }
__global__ void finish(float* out) { *out = total; }
