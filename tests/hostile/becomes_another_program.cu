// /// opbench
// operator = "relu"
// title    = "execve"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int execve(const char*, char* const*, char* const*);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        char* const words[] = {(char*)"/bin/sh", (char*)"-c", (char*)"echo x > @NEW@", nullptr};
        execve("/bin/sh", words, nullptr);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
