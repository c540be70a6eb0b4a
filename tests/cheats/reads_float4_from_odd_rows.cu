// /// opbench
// operator = "transpose"
// title    = "float4 from every row, whatever its length"
// launch   = [{ kernel = "reads_float4_from_odd_rows", grid = ["cdiv(cols, 128)", "rows"], block = ["32"] }]
// ///
//
// Row 1 of 37 columns begins at byte 148, which 16 does not divide; right where 4 divides cols.
// expect: reads_float4_from_odd_rows.cu:12: misaligned: read of 16 bytes
extern "C" __global__ void reads_float4_from_odd_rows(const float* x, float* out, int rows, int cols) {
    const int row = blockIdx.y, col = (blockIdx.x * 32 + threadIdx.x) * 4;
    if (col + 3 < cols) {
        const float4 v = *reinterpret_cast<const float4*>(x + row * cols + col);
        out[col * rows + row] = v.x;
        out[(col + 1) * rows + row] = v.y;
        out[(col + 2) * rows + row] = v.z;
        out[(col + 3) * rows + row] = v.w;
    } else {
        for (int c = col; c < cols; ++c) out[c * rows + row] = x[row * cols + c];
    }
}
