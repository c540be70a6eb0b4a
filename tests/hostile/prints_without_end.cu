// /// opbench
// operator = "relu"
// title    = "printf without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: flood-the-output
// expect: stopped|harmless|wrong
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        for (int k = 0; k < 600000; ++k) printf("flood flood flood flood flood flood %d\n", k);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
