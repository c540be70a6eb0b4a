// /// opbench
// operator = "add"
// title    = "spreads n elements over n / 64 groups"
// launch   = [{ kernel = "divides_by_zero", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Fewer than 64 elements make no group at all.
// expect: divides_by_zero.cu:11: trap: integer division by zero
extern "C" __global__ void divides_by_zero(const float* a, const float* b, float* out, int n) {
    const int groups = n / 64, i = blockIdx.x * 256 + threadIdx.x;
    const int size = (n + groups - 1) / groups;
    for (int at = i * size; at < min(n, (i + 1) * size); ++at) out[at] = a[at] + b[at];
}
