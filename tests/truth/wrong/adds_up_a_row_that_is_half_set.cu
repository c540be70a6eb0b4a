// /// opbench
// operator = "sum"
// title    = "a local array of which only the first half is set"
// launch   = [{ kernel = "adds_up_a_row_that_is_half_set", grid = ["1"], block = ["32"] }]
// ///
//
// The second half holds what was there before.
// expect: adds_up_a_row_that_is_half_set.cu:14: uninitialised|not-finite
extern "C" __global__ void adds_up_a_row_that_is_half_set(const float* x, float* out, int n) {
    float part[8];
    for (int k = 0; k < 4; ++k) part[k] = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) part[i / 32 % 4] += x[i];
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) sum += part[k];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (threadIdx.x == 0) out[0] = sum;
}
