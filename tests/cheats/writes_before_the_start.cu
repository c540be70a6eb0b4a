// /// opbench
// operator = "relu"
// title    = "starts one element early"
// launch   = [{ kernel = "writes_before_the_start", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: writes_before_the_start.cu:10: out-of-bounds: write of 4 bytes at byte -4|out-of-bounds: write before the start of buffer 'out'
extern "C" __global__ void writes_before_the_start(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) out[-1] = 0.0f;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
