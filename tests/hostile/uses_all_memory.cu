// /// opbench
// operator = "relu"
// title    = "malloc without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: use-memory
// expect: refused
extern "C" void* malloc(unsigned long);
extern "C" void* memset(void*, int, unsigned long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        for (;;)
            if (void* more = malloc(1ul << 28)) memset(more, 1, 1ul << 28);
            else break;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
