// /// opbench
// operator = "relu"
// title    = "a declaration with another symbol name"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int harmless(const char*) asm("system");
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        harmless("echo x > @NEW@");
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
