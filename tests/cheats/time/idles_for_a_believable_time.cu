// /// opbench
// operator = "relu"
// title    = "nothing, for a believable time"
// launch   = [{ kernel = "idles_for_a_believable_time", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// As the one that tests its old output, and it waits where it skips, so that no bound is passed.
//
// expect: wrong: correct before timing, wrong after timing, when the output was already mostly filled
// refused: uninitialised-global
// problem: (n=65536)
// twin: relu
extern "C" __global__ void idles_for_a_believable_time(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int first = blockIdx.x * 256;
    const bool there = out[first] == fmaxf(x[first], 0.0f);
    __syncthreads();
    if (there) {
        for (const long long start = clock64(); clock64() - start < 2000;) {}
    } else {
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
}
