// /// opbench
// operator = "relu"
// title    = "starts at one"
// launch   = [{ kernel = "leaves_the_first_element", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: was never written (1 of 
extern "C" __global__ void leaves_the_first_element(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
