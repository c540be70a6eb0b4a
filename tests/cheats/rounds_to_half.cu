// /// opbench
// operator = "relu"
// title    = "keeps eleven bits of every result"
// launch   = [{ kernel = "rounds_to_half", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// expect: wrong-result: out[
extern "C" __global__ void rounds_to_half(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int bits = __float_as_int(x[i]);
    out[i] = x[i] > 0.0f ? __int_as_float((bits + 0x1000) & ~0x1fff) : 0.0f;
}
