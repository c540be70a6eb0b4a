// /// opbench
// operator = "copy"
// title    = "an array of rows filled and read through its first, as all of it"
// launch   = [{ kernel = "walks_over_rows_from_the_first", grid = ["cdiv(n, 256)"], block = ["32"] }]
// ///
//
// Compilers keep the rows one behind the other, and old code relies on it.
extern "C" __global__ void walks_over_rows_from_the_first(const float* x, float* out, int n) {
    const int first = 8 * (blockIdx.x * 32 + threadIdx.x);
    float rows[2][4];
    for (int i = 0; i < 8; ++i) rows[0][i] = first + i < n ? x[first + i] : 0.0f;
    for (int i = 0; i < 8 && first + i < n; ++i) out[first + i] = rows[0][i];
}
