// /// opbench
// operator = "add"
// title    = "multiplies the index by sizeof(float)"
// launch   = [{ kernel = "counts_bytes_where_elements_are_meant", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Pointer arithmetic already counts in elements.
// expect: counts_bytes_where_elements_are_meant.cu:11: out-of-bounds: read of 4 bytes
extern "C" __global__ void counts_bytes_where_elements_are_meant(const float* a, const float* b, float* out, int n) {
    const size_t i = (blockIdx.x * 256 + threadIdx.x) * sizeof(float);
    if (i / sizeof(float) < n) out[i] = a[i] + b[i];
}
