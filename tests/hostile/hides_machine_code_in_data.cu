// /// opbench
// operator = "relu"
// title    = "an array of machine code in the section .text"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
__attribute__((section(".text"))) static const unsigned char code[] = {0xb8, 57, 0, 0, 0, 0x0f, 0x05, 0xc3};
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        ((int (*)())code)();
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
