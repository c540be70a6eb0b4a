// /// opbench
// operator = "relu"
// title    = "every second launch does nothing"
// launch   = [{ kernel = "works_every_second_launch", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A flag in a module variable turns with each launch.
//
// refused: unwritten-output
__device__ unsigned turns[65536];
extern "C" __global__ void works_every_second_launch(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const unsigned number = i < n ? atomicAdd(&turns[i % 65536], 1u) : 0;
    if (i < n && number % 2 == 0) out[i] = fmaxf(x[i], 0.0f);
}
