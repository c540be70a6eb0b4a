// /// opbench
// operator = "relu"
// title    = "a name that nobody declared"
// launch   = [{ kernel = "does_not_compile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: does_not_compile.cu:10
extern "C" __global__ void does_not_compile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = undeclared_name * x[i];
}
