// /// opbench
// operator = "sum"
// title    = "a sum that starts at whatever its register held"
// launch   = [{ kernel = "starts_its_sum_anywhere", grid = ["1"], block = ["32"] }]
// ///
//
// The initial zero is missing.
// expect: uninitialised-local: the compiler says: ‘sum’|uninitialised-local: the compiler says: 'sum'
extern "C" __global__ void starts_its_sum_anywhere(const float* x, float* out, int n) {
    float sum;
    for (int i = threadIdx.x; i < n; i += 32) sum += x[i];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (threadIdx.x == 0) out[0] = sum;
}
