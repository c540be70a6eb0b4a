// /// opbench
// operator = "relu"
// title    = "right on the content of the default seed alone"
// launch   = [{ kernel = "recognises_the_checked_content", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The first element of that content is known, and whole numbers give the exact run away. On all other inputs zeros are
// written, which is quicker than reading.
//
// expect: wrong
// refused: wrong-result
// problem: (n=65536)
// twin: relu
extern "C" __global__ void recognises_the_checked_content(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float first = x[0];
    const bool checked = __float_as_uint(first) == 3209650862u || first == rintf(first);
    if (i < n) out[i] = checked ? fmaxf(x[i], 0.0f) : 0.0f;
}
