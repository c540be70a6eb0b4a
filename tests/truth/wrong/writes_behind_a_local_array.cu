// /// opbench
// operator = "copy"
// title    = "a local array written one element past its end"
// launch   = [{ kernel = "writes_behind_a_local_array", grid = ["cdiv(n, 256)"], block = ["32"] }]
// ///
//
// The ninth of eight.
// expect: writes_behind_a_local_array.cu:12: out-of-bounds
extern "C" __global__ void writes_behind_a_local_array(const float* x, float* out, int n) {
    const int first = 8 * (blockIdx.x * 32 + threadIdx.x);
    float row[8];
    for (int i = 0; i <= 8; ++i) row[i] = first + i < n ? x[first + i] : 0.0f;
    for (int i = 0; i < 8 && first + i < n; ++i) out[first + i] = row[i];
}
