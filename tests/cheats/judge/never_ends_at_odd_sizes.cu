// /// opbench
// operator = "relu"
// title    = "waits for ever if the size is odd"
// launch   = [{ kernel = "never_ends_at_odd_sizes", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A case that never ends has no wrong result.
//
// refused: time-limit
extern "C" __global__ void never_ends_at_odd_sizes(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (n % 2 == 1 && n > 100) {
        for (volatile int wait = 1; wait;) {}
    }
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
