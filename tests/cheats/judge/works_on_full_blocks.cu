// /// opbench
// operator = "relu"
// title    = "the last block has no work if it is not full"
// launch   = [{ kernel = "works_on_full_blocks", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Sizes that a benchmark times are multiples of the block.
//
// refused: unwritten-output
extern "C" __global__ void works_on_full_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if ((blockIdx.x + 1) * 256 > n && n > 4096) return;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
