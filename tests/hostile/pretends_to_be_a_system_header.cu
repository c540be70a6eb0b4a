// /// opbench
// operator = "relu"
// title    = "a line marker of a system header before assembly"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: read-a-file
// expect: refused
# 1 "/usr/include/stdio.h" 3
asm(".data\nstolen: .incbin \"@CANARY@\"\n.zero 64\n.text");
extern "C" __device__ const char stolen[];
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) reinterpret_cast<char*>(out)[i] = stolen[i % 32];
}
