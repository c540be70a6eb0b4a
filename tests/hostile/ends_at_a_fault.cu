// /// opbench
// operator = "relu"
// title    = "a handler of SIGSEGV that ends with success"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: change-a-result
// expect: refused
extern "C" void (*signal(int, void (*)(int)))(int);
extern "C" void _exit(int);
static __device__ void leave(int) { _exit(0); }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        signal(11, leave);
        *(volatile int*)1 = 0;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
