// /// opbench
// operator = "copy"
// title    = "a loop over a row that takes the next row's first element along, and multiplies it by zero"
// launch   = [{ kernel = "reads_on_into_the_next_row", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The address lies within the array, and the result is right.
// expect: reads_on_into_the_next_row.cu:16: out-of-bounds
extern "C" __global__ void reads_on_into_the_next_row(const float* x, float* out, int n) {
    __shared__ float rows[9][32];
    const int i = blockIdx.x * 256 + threadIdx.x, row = threadIdx.x / 32, lane = threadIdx.x % 32;
    rows[row][lane] = i < n ? x[i] : 0.0f;
    if (threadIdx.x < 32) rows[8][lane] = 0.0f;
    __syncthreads();
    float own = 0.0f;
    for (int other = 0; other <= 32; ++other) own += other == lane ? rows[row][other] : 0.0f * rows[row][other];
    if (i < n) out[i] = own;
}
