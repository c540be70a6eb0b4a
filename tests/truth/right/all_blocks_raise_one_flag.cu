// /// opbench
// operator = "copy"
// title    = "every block that sees a number raises one flag in global memory"
// workspace = { any = "1" }
//
// [[launch]]
// zero = "any"
//
// [[launch]]
// kernel = "raise_flag"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "any", "n"]
//
// [[launch]]
// kernel = "copy_if_any"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "any", "n"]
// ///
//
// The next launch reads it: nobody reads while blocks store the same value.
extern "C" __global__ void raise_flag(const float* x, int* any, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && x[i] == x[i]) *any = 1;
}
extern "C" __global__ void copy_if_any(const float* x, float* out, const int* any, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = *any ? x[i] : 0.0f;
}
