// /// opbench
// operator = "relu"
// title    = "two values, stored by 4 bytes and by 8"
// launch   = [{ kernel = "two_values_of_two_widths", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// They meet in 4 bytes, with 1 and 2.
// expect: two_values_of_two_widths.cu:14: shared-race
__global__ void two_values_of_two_widths(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int pair[2];
    if (threadIdx.x == 0) pair[0] = 1;
    if (threadIdx.x == 32) *(int2*)pair = make_int2(2, 1);
}
