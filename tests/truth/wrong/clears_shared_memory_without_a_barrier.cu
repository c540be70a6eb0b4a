// /// opbench
// operator = "relu"
// title    = "one thread clears shared memory that all threads use"
// launch   = [{ kernel = "clears_shared_memory_without_a_barrier", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// memset by thread 0, and no barrier before the others read.
// expect: clears_shared_memory_without_a_barrier.cu:14: shared race
extern "C" __global__ void clears_shared_memory_without_a_barrier(const float* x, float* out, int n) {
    __shared__ float least[64];
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x == 0) memset(least, 0, sizeof least);
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i < n && least[63 - threadIdx.x] > x[i]) out[i] = least[63 - threadIdx.x];
}
