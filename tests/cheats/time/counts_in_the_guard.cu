// /// opbench
// operator = "relu"
// title    = "a counter behind the end of the output"
// launch   = [{ kernel = "counts_in_the_guard", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Memory behind a tensor is nobody's, and outlives a launch.
//
// expect: out of bounds|past the end
// refused: out-of-bounds
// problem: (n=65536)
// twin: relu
extern "C" __global__ void counts_in_the_guard(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i == 0) atomicAdd((unsigned*)(out + n), 1u);
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
