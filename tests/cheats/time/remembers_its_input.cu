// /// opbench
// operator = "relu"
// title    = "a fingerprint of the input in a module variable"
// launch   = [{ kernel = "remembers_its_input", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A block that finds the first element it saw last returns: its output is there already.
// The mark is set for every launch that works, so the check finds nothing.
//
// expect: invalid: keeps state between launches
// refused: unwritten-output|keeps-state
// problem: (n=65536)
// twin: relu
__device__ float seen[4096];
extern "C" __global__ void remembers_its_input(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float first = x[blockIdx.x * 256];
    const bool known = seen[blockIdx.x % 4096] == first;
    __syncthreads();
    if (known) return;
    if (threadIdx.x == 0) seen[blockIdx.x % 4096] = first;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
