// /// opbench
// operator = "relu"
// title    = "an initialised array of 3 GB"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: fill-the-disk
// expect: refused
__device__ char huge[3000000000u] = {1};
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) huge[5] = 1;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
