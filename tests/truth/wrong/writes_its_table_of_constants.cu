// /// opbench
// operator = "relu"
// title    = "a kernel that writes a __constant__ variable"
// launch   = [{ kernel = "writes_its_table_of_constants", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Only the host writes such variables.
// expect: writes_its_table_of_constants.cu:13: constant-store
__constant__ int table[4];
extern "C" __global__ void writes_its_table_of_constants(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x < 4) table[threadIdx.x] = 1;
}
