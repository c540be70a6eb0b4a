// /// opbench
// operator = "relu"
// title    = "a mark in memory of the device's heap"
// launch   = [{ kernel = "takes_memory_from_the_heap", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// What malloc gives outlives a launch, and the variable that holds the address changes only once.
//
// expect: invalid: keeps state between launches|unsupported
// sign: device-heap
// problem: (n=65536)
// twin: relu
__device__ float* mark;
extern "C" __global__ void takes_memory_from_the_heap(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (mark == nullptr && i == 0) mark = (float*)malloc(sizeof(float));
    if (mark != nullptr && *mark == x[0] && *mark != 0.0f) return;
    if (mark != nullptr && i == n - 1) *mark = x[0];
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
