// /// opbench
// operator = "relu"
// title    = "a thread that copies 7 bytes from behind its input"
// launch   = [{ kernel = "copies_from_behind_its_input", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The input has n floats. The bytes that are read decide nothing.
// expect: copies_from_behind_its_input.cu:14: out of bounds
extern "C" __global__ void copies_from_behind_its_input(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i != n - 1) return;
    char own[8];
    memcpy(own, (const char*)(x + n) + 1, 7);
    if (own[0] == 1 && own[3] == 2 && own[6] == 3) out[i] = fmaxf(x[i], 0.0f);
}
