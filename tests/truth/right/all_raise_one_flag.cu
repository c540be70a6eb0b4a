// /// opbench
// operator = "relu"
// title    = "every thread that sees a positive number raises the flag of its block"
// launch   = [{ kernel = "all_raise_one_flag", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Several threads store one and the same value between two barriers: whoever is last, it is stored.
extern "C" __global__ void all_raise_one_flag(const float* x, float* out, int n) {
    __shared__ int positive;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (threadIdx.x == 0) positive = 0;
    __syncthreads();
    if (i < n && x[i] > 0.0f) positive = 1;
    __syncthreads();
    if (i < n) out[i] = positive ? fmaxf(x[i], 0.0f) : 0.0f;
}
