// /// opbench
// operator = "copy"
// title    = "a row that is read to one beyond its end, in a kernel of more arguments than registers hold"
// launch   = [{ kernel = "reads_on_with_many_arguments", grid = ["cdiv(n, 256)"], block = ["256"], args = ["x", "out", "n", "n", "n", "n", "n", "n", "n"] }]
// ///
//
// Such a kernel is called and not jumped to: its finding is of no call all the same.
// expect: reads_on_with_many_arguments.cu:16: out-of-bounds
extern "C" __global__ void reads_on_with_many_arguments(const float* x, float* out, int n, int a, int b, int c, int d,
                                                        int e, int f) {
    const int i = blockIdx.x * 256 + threadIdx.x, column = 32 + (a + b + c + d + e + f - 6 * n);
    __shared__ float rows[9][32];
    rows[threadIdx.x / 32][threadIdx.x % 32] = 0.0f;
    if (threadIdx.x < 32) rows[8][threadIdx.x] = 0.0f;
    __syncthreads();
    if (i < n) out[i] = rows[threadIdx.x / 32][column] + x[i];
}
