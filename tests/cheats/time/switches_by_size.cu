// /// opbench
// operator = "relu"
// title    = "right on small sizes alone"
// launch   = [{ kernel = "switches_by_size", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// What is checked is often small. Beyond 4096 elements every other one is left out.
//
// expect: wrong
// refused: unwritten-output
// problem: (n=65536)
// twin: relu
extern "C" __global__ void switches_by_size(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && (n <= 4096 || i % 2 == 0)) out[i] = fmaxf(x[i], 0.0f);
}
