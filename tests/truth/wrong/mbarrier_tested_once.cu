// /// opbench
// operator = "relu"
// title    = "mbarrier.test_wait once"
// launch   = [{ kernel = "mbarrier_tested_once", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// It may answer that the phase is not over.
// expect: mbarrier_tested_once.cu:21: uninitialised-shared|shared-race
__global__ void mbarrier_tested_once(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    __shared__ unsigned long long bar;
    __shared__ int part[64];
    const unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" ::"r"(at) : "memory");
    __syncthreads();
    part[threadIdx.x] = threadIdx.x;
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
    unsigned over = 0;
    {} asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(over) : "r"(at) : "memory");
    if (part[63 - threadIdx.x] == 12345 && i < n) out[i] = over;
}
