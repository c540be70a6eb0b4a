// /// opbench
// operator = "relu"
// title    = "writes zero everywhere"
// launch   = [{ kernel = "returns_zeros", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: wrong-result: out[
extern "C" __global__ void returns_zeros(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 0.0f;
}
