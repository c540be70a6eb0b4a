// /// opbench
// operator = "add"
// title    = "off by one: i < n - 1"
// launch   = [{ kernel = "leaves_the_last_element", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The last element is nobody's.
// expect: was never written (1 of 
extern "C" __global__ void leaves_the_last_element(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n - 1) out[i] = a[i] + b[i];
}
