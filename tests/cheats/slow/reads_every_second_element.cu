// /// opbench
// operator = "relu"
// title    = "two neighbouring elements per thread, one after the other"
// launch   = [{ kernel = "reads_every_second_element", grid = ["cdiv(n, 512)"], block = ["256"] }]
// ///
//
// Each request moves 8 sectors and uses half of their bytes.
// expect: reads_every_second_element.cu:12: strided: each 4-byte global load request touches 8.0 sectors on average where 4.0
// at: (n=4096)
extern "C" __global__ void reads_every_second_element(const float* x, float* out, int n) {
    const int i = 2 * (blockIdx.x * 256 + threadIdx.x);
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i + 1 < n) out[i + 1] = fmaxf(x[i + 1], 0.0f);
}
