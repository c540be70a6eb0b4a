// /// opbench
// operator = "copy"
// title    = "one element too many of each row: the next row's first, and behind the last row whatever lies there"
// launch   = [{ kernel = "compares_with_the_next_row", grid = ["cdiv(n, 256)"], block = ["32"] }]
// ///
//
// The largest is not used unless it is no number that the input has.
// expect: compares_with_the_next_row.cu:18: out-of-bounds
extern "C" __global__ void compares_with_the_next_row(const float* x, float* out, int n) {
    const int first = 8 * (blockIdx.x * 32 + threadIdx.x);
    float kept[2][4], largest = -1e37f;
    for (int row = 0; row < 2; ++row)
        for (int i = 0; i < 4; ++i)
            kept[row][i] = first + row * 4 + i < n ? x[first + row * 4 + i] : 0.0f;

    for (int row = 0; row < 2; ++row)
        for (int i = 0; i <= 4; ++i)
            largest = fmaxf(largest, kept[row][i]);

    for (int i = 0; i < 8 && first + i < n; ++i) out[first + i] = largest > -1e37f ? kept[i / 4][i % 4] : largest;
}
