// /// opbench
// operator = "copy"
// title    = "an array of rows, filled and read from its first row on"
// launch   = [{ kernel = "fills_all_rows_from_the_first", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// rows[0][i] is the common word for "the i-th of them all"; the address stays within the array.
extern "C" __global__ void fills_all_rows_from_the_first(const float* x, float* out, int n) {
    __shared__ float rows[8][32];
    const int i = blockIdx.x * 256 + threadIdx.x;
    rows[0][threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = rows[threadIdx.x / 32][threadIdx.x % 32];
}
