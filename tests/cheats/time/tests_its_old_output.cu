// /// opbench
// operator = "relu"
// title    = "one element of a tile tested, the tile skipped"
// launch   = [{ kernel = "tests_its_old_output", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A tile whose first element is right already is left as it is: 1/256 of the work.
//
// expect: wrong: correct before timing, wrong after timing, when the output was already mostly filled
// refused: uninitialised-global
// problem: (n=65536)
// twin: relu
extern "C" __global__ void tests_its_old_output(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int first = blockIdx.x * 256;
    const bool there = out[first] == fmaxf(x[first], 0.0f);
    __syncthreads();
    if (!there) {
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
}
