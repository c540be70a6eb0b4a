// /// opbench
// operator = "relu"
// title    = "a mark in constant memory"
// launch   = [{ kernel = "stores_a_constant_by_force", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Constants outlive a launch.
//
// refused: constant-store
__constant__ float mark;
extern "C" __global__ void stores_a_constant_by_force(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i == 0) *const_cast<float*>(&mark) = 1.0f;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
