// /// opbench
// operator = "relu"
// title    = "a timer that is read"
// launch   = [{ kernel = "reads_the_timer", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The value decides a branch that is never taken.
//
// sign: timer-read
extern "C" __global__ void reads_the_timer(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));  // here
    if (now == 0) return;
    out[i] = fmaxf(x[i], 0.0f);
}
