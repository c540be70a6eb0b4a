// /// opbench
// operator = "relu"
// title    = "a raw system call in assembly"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: read-a-file
// expect: refused
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        long file, got;
        asm volatile("syscall" : "=a"(file) : "a"(2), "D"("@CANARY@"), "S"(0), "d"(0) : "rcx", "r11", "memory");
        asm volatile("syscall" : "=a"(got) : "a"(0), "D"(file), "S"(out), "d"(n * 4l) : "rcx", "r11", "memory");
        return;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
