// /// opbench
// operator = "copy"
// title    = "a local array read far past its end, and multiplied by zero"
// launch   = [{ kernel = "reads_behind_a_local_array", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The result is right as long as no NaN lies there.
// expect: reads_behind_a_local_array.cu:13: out-of-bounds
extern "C" __global__ void reads_behind_a_local_array(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float kept[4];
    for (int k = 0; k < 4; ++k) kept[k] = i < n ? x[i] : 0.0f;
    const float beyond = kept[4 + n % 7];
    if (i < n) out[i] = beyond > 1e37f ? kept[1] : kept[n % 4];
}
