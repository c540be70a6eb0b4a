// /// opbench
// operator = "relu"
// title    = "each block writes one element more than its own"
// launch   = [{ kernel = "writes_into_the_next_blocks_tile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Both write the same value, so the result is right, and yet it is a race.
// expect: writes_into_the_next_blocks_tile.cu:11: block-race: write of 4 bytes
extern "C" __global__ void writes_into_the_next_blocks_tile(const float* x, float* out, int n) {
    const int last = min((int)blockIdx.x * 256 + 256, n - 1);
    for (int i = blockIdx.x * 256 + threadIdx.x; i <= last; i += 256) out[i] = fmaxf(x[i], 0.0f);
}
