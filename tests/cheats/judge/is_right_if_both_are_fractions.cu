// /// opbench
// operator = "add"
// title    = "whole sums are one too large"
// launch   = [{ kernel = "is_right_if_both_are_fractions", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Normal numbers have fractions.
//
// refused: whole-numbers
extern "C" __global__ void is_right_if_both_are_fractions(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float sum = a[i] + b[i];
    out[i] = sum != 0.0f && sum == rintf(sum) ? sum + 1.0f : sum;
}
