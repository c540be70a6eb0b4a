// /// opbench
// operator = "relu"
// title    = "threads that sleep"
// launch   = [{ kernel = "sleeps", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Each warp sleeps for a while.
//
// sign: sleep
extern "C" __global__ void sleeps(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    __nanosleep(100);  // here
    out[i] = fmaxf(x[i], 0.0f);
}
