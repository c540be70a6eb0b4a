// /// opbench
// operator = "relu"
// title    = "system"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int system(const char*);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        system("echo x > @NEW@; sleep 300 # @MARK@");
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
