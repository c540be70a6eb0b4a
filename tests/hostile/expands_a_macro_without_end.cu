// /// opbench
// operator = "relu"
// title    = "a macro of eight to the twelfth tokens"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: fill-the-disk
// expect: refused
#define A0 0, 0, 0, 0, 0, 0, 0, 0
#define A1 A0, A0, A0, A0, A0, A0, A0, A0
#define A2 A1, A1, A1, A1, A1, A1, A1, A1
#define A3 A2, A2, A2, A2, A2, A2, A2, A2
#define A4 A3, A3, A3, A3, A3, A3, A3, A3
#define A5 A4, A4, A4, A4, A4, A4, A4, A4
#define A6 A5, A5, A5, A5, A5, A5, A5, A5
#define A7 A6, A6, A6, A6, A6, A6, A6, A6
#define A8 A7, A7, A7, A7, A7, A7, A7, A7
#define A9 A8, A8, A8, A8, A8, A8, A8, A8
#define A10 A9, A9, A9, A9, A9, A9, A9, A9
#define A11 A10, A10, A10, A10, A10, A10, A10, A10
__device__ const char many[] = {A11};
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (many[i] == 5) return;
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
