// /// opbench
// operator = "relu"
// title    = "text of the host's files in the kernel"
// launch   = [{ kernel = "includes_a_file_of_the_host", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A compiler's error would show the text.
//
// refused: does-not-compile
#include "/etc/passwd"
extern "C" __global__ void includes_a_file_of_the_host(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
