// /// opbench
// operator = "relu"
// title    = ".incbin in assembly at file scope"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: read-a-file
// expect: refused
asm(".data\nstolen: .incbin \"@CANARY@\"\n.zero 64\n.text");
extern "C" __device__ const char stolen[];
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) reinterpret_cast<char*>(out)[i] = stolen[i % 32];
}
