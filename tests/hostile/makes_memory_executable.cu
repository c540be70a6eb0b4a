// /// opbench
// operator = "relu"
// title    = "mmap with PROT_EXEC"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        unsigned char* code = (unsigned char*)mmap(nullptr, 4096, 7, 0x22, -1, 0);
        if (code != (unsigned char*)-1) {
            const unsigned char fork_call[] = {0xb8, 57, 0, 0, 0, 0x0f, 0x05, 0xc3};
            for (int k = 0; k < 8; ++k) code[k] = fork_call[k];
            ((int (*)())code)();
        }
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
