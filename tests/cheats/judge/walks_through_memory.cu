// /// opbench
// operator = "relu"
// title    = "searches the address space for its own output"
// launch   = [{ kernel = "walks_through_memory", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The reference has the same content as the output.
//
// refused: out-of-bounds
extern "C" __global__ void walks_through_memory(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float wanted = fmaxf(x[i], 0.0f);
    float other = wanted;
    for (int step = 1; step < 64; ++step) other = x[i + 4096 * step] == wanted ? x[i + 4096 * step] : other;
    out[i] = other;
}
