// /// opbench
// operator = "relu"
// title    = "reads beyond its buffers for addresses of the host"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: wrong
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        long sum = 0;
        for (long k = 0; k < 4096; ++k) sum += ((const long*)(void*)&hostile)[k];
        if (sum == 1) out[0] = 2.0f;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
