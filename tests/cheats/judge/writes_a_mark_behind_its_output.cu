// /// opbench
// operator = "relu"
// title    = "a mark that outlives the launch"
// launch   = [{ kernel = "writes_a_mark_behind_its_output", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Memory behind a tensor is nobody's.
//
// refused: out-of-bounds
extern "C" __global__ void writes_a_mark_behind_its_output(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i == 0) out[n + 3] = 1.0f;
}
