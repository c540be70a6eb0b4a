// /// opbench
// operator = "matmul"
// title    = "neighbouring lanes compute neighbouring rows"
// launch   = [{ kernel = "multiplies_down_a_column", grid = ["cdiv(m, 32)", "cdiv(n, 8)"], block = ["32", "8"] }]
// ///
//
// The lanes of a store are n elements apart, those of the load of a are k apart.
// expect: multiplies_down_a_column.cu:14: uncoalesced: each 4-byte global load request touches 32.0 sectors on average
// at: (m=64,n=64,k=64)
extern "C" __global__ void multiplies_down_a_column(const float* a, const float* b, float* out, int m, int n, int k) {
    const int row = blockIdx.x * 32 + threadIdx.x, col = blockIdx.y * 8 + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + col];
    out[row * n + col] = sum;
}
