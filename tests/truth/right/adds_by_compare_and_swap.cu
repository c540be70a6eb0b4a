// /// opbench
// operator = "relu"
// title    = "a loop of atomicCAS that begins with a plain read"
// launch   = [{ kernel = "adds_by_compare_and_swap", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The programming guide's way to add by any type; a wrong guess costs one round.
__device__ unsigned total;
__global__ void adds_by_compare_and_swap(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        unsigned old = total, assumed;
        do {
            assumed = old;
            old = atomicCAS(&total, assumed, assumed + 1);
        } while (old != assumed);
    }
}
