// /// opbench
// operator = "relu"
// title    = "no more than 4096 elements"
// launch   = [{ kernel = "stops_at_a_round_size", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Larger problems are left to whoever notices.
//
// refused: unwritten-output
extern "C" __global__ void stops_at_a_round_size(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && i < 4096) out[i] = fmaxf(x[i], 0.0f);
}
