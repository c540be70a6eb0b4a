// /// opbench
// operator = "sum"
// title    = "every thread adds to one shared total, plainly"
// launch   = [{ kernel = "adds_to_shared_without_atomics", grid = ["1"], block = ["256"] }]
// ///
//
// Additions of other threads get lost between a thread's load and its store.
// expect: adds_to_shared_without_atomics.cu:13: shared-race: 
extern "C" __global__ void adds_to_shared_without_atomics(const float* x, float* out, int n) {
    __shared__ float total;
    if (threadIdx.x == 0) total = 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 256) total += x[i];
    __syncthreads();
    if (threadIdx.x == 0) out[0] = total;
}
