// /// opbench
// operator = "relu"
// title    = "the result of the launch before, while the input looks the same"
// launch   = [{ kernel = "copies_the_launch_before", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The output is written in every launch, so poison in it tells nothing.
//
// expect: invalid: keeps state between launches
// refused: block-race
// problem: (n=65536)
// twin: relu
__device__ float seen[4096];
__device__ float kept[65536];
extern "C" __global__ void copies_the_launch_before(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float first = x[blockIdx.x * 256];
    const bool known = seen[blockIdx.x % 4096] == first;
    __syncthreads();
    if (threadIdx.x == 0) seen[blockIdx.x % 4096] = first;
    if (i >= n) return;
    if (!known) kept[i % 65536] = fmaxf(x[i], 0.0f);
    out[i] = kept[i % 65536];
}
