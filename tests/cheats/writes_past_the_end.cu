// /// opbench
// operator = "relu"
// title    = "off by one: i <= n"
// launch   = [{ kernel = "writes_past_the_end", grid = ["cdiv(n + 1, 256)"], block = ["256"] }]
// ///
//
// expect: writes_past_the_end.cu:10: out-of-bounds: write of 4 bytes at byte|out-of-bounds: write past the end of buffer 'out'
extern "C" __global__ void writes_past_the_end(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = i < n && x[i] > 0.0f ? x[i] : 0.0f;
}
