// /// opbench
// operator = "relu"
// title    = "a load that the caches drop first"
// launch   = [{ kernel = "streams", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// An honest use: every element is read once.
//
// sign: eviction-policy
extern "C" __global__ void streams(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = fmaxf(__ldcs(x + i), 0.0f);  // here
}
