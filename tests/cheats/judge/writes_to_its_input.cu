// /// opbench
// operator = "relu"
// title    = "the input becomes the output"
// launch   = [{ kernel = "writes_to_its_input", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A second launch finds nothing to do.
//
// refused: changed-input
extern "C" __global__ void writes_to_its_input(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    out[i] = fmaxf(x[i], 0.0f);
    const_cast<float*>(x)[i] = out[i];
}
