// /// opbench
// operator = "relu"
// title    = "a prefetch into L2"
// launch   = [{ kernel = "prefetches", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The line of a later element is fetched.
//
// sign: l2-prefetch
extern "C" __global__ void prefetches(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i));  // here
    out[i] = fmaxf(x[i], 0.0f);
}
