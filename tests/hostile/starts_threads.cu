// /// opbench
// operator = "relu"
// title    = "pthread_create without end"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
extern "C" unsigned sleep(unsigned);
static __device__ void* wait_long(void*) { sleep(300); return nullptr; }
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        unsigned long thread;
        for (int k = 0; k < 2000; ++k)
            if (pthread_create(&thread, nullptr, wait_long, nullptr)) break;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
