// /// opbench
// operator = "relu"
// title    = "one value, stored by 4 bytes and by 8"
// launch   = [{ kernel = "one_value_of_two_widths", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Both store 1 where they meet.
__global__ void one_value_of_two_widths(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ int pair[2];
    if (threadIdx.x == 0) pair[0] = 1;
    if (threadIdx.x == 32) *(int2*)pair = make_int2(1, 1);
}
