// /// opbench
// operator = "relu"
// title    = "works in the first launches only"
// launch   = [{ kernel = "counts_its_launches", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A counter in a module variable; later launches find their output in place.
//
// refused: keeps-state|unwritten-output
__device__ unsigned launches[4096];
extern "C" __global__ void counts_its_launches(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const unsigned number = launches[blockIdx.x % 4096];
    __syncthreads();
    if (number >= 30) return;
    if (threadIdx.x == 0) launches[blockIdx.x % 4096] = number + 1;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
