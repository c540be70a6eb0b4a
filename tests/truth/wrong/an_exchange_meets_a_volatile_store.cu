// /// opbench
// operator = "relu"
// title    = "one block exchanges a state atomically, the others store another one into volatile memory"
// launch   = [{ kernel = "an_exchange_meets_a_volatile_store", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Which of the two states remains is undefined.
// expect: an_exchange_meets_a_volatile_store.cu:17: block-race
__device__ int state;
__global__ void an_exchange_meets_a_volatile_store(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) {
        atomicExch(&state, 1);
    } else {
        *(volatile int*)&state = 2;
    }
}
