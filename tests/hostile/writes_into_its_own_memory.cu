// /// opbench
// operator = "relu"
// title    = "/proc/self/mem"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: change-a-result
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long write(int, const void*, unsigned long);
extern "C" long pwrite(int, const void*, unsigned long, long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        pwrite(open("/proc/self/mem", 2), "\xcc", 1, (long)&open);
        out[0] = 4242.0f;
        return;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
