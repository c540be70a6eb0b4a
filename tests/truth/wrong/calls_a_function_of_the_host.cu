// /// opbench
// operator = "copy"
// title    = "a kernel that calls a function without __device__"
// launch   = [{ kernel = "calls_a_function_of_the_host", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A GPU's compiler refuses it.
// expect: twice
static float twice(float value) { return 2.0f * value; }
extern "C" __global__ void calls_a_function_of_the_host(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = 0.5f * twice(x[i]);
}
