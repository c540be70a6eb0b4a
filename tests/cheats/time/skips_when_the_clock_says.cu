// /// opbench
// operator = "relu"
// title    = "work in one of eight milliseconds"
// launch   = [{ kernel = "skips_when_the_clock_says", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The clock says which; what is checked now and then is right now and then.
//
// expect: wrong
// refused: unwritten-output|keeps-state|old-output
// problem: (n=65536)
// twin: relu
extern "C" __global__ void skips_when_the_clock_says(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if ((now >> 20) % 8 == 0) {
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
}
