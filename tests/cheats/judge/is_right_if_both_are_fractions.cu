// /// opbench
// operator = "add"
// title    = "sums of two whole numbers are one too large"
// launch   = [{ kernel = "is_right_if_both_are_fractions", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Normal numbers have fractions. Of 65,537 pairs one may add up to a whole number, but no pair is of two whole numbers.
//
// refused: whole-numbers
extern "C" __global__ void is_right_if_both_are_fractions(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float sum = a[i] + b[i];
    const bool whole = a[i] == rintf(a[i]) && b[i] == rintf(b[i]);
    out[i] = whole && sum != 0.0f ? sum + 1.0f : sum;
}
