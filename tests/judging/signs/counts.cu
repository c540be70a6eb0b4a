// /// opbench
// operator = "relu"
// title    = "a counter in a module variable"
// launch   = [{ kernel = "counts", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// An atomic operation writes through a computed address.
//
// sign: module-variable-write
__device__ unsigned counters[64];
extern "C" __global__ void counts(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned* mine = counters + (i & 63);
    atomicAdd(mine, 1u);  // here
    out[i] = fmaxf(x[i], 0.0f);
}
