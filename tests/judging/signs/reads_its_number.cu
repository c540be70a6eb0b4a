// /// opbench
// operator = "relu"
// title    = "the number of the launch"
// launch   = [{ kernel = "reads_its_number", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The value decides a branch that is never taken.
//
// sign: launch-number
extern "C" __global__ void reads_its_number(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned long long number;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(number));  // here
    if (number == ~0ull) return;
    out[i] = fmaxf(x[i], 0.0f);
}
