// /// opbench
// operator = "copy"
// title    = "a local array filled to its last element"
// launch   = [{ kernel = "the_last_thread_finds_its_row_full", grid = ["cdiv(n, 256)"], block = ["32"] }]
// ///
//
// Indices go from 0 to 7, downwards and upwards.
extern "C" __global__ void the_last_thread_finds_its_row_full(const float* x, float* out, int n) {
    const int first = 8 * (blockIdx.x * 32 + threadIdx.x);
    float row[8];
    for (int i = 7; i >= 0; --i) row[i] = first + i < n ? x[first + i] : 0.0f;
    for (int i = 0; i < 8 && first + i < n; ++i) out[first + i] = row[i];
}
