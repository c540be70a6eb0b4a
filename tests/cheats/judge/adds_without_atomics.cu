// /// opbench
// operator = "sum"
// title    = "all threads add to the output at once"
// launch   = [{ kernel = "adds_without_atomics", grid = ["1"], block = ["256"] }]
// ///
//
// Fast, and often nearly right.
//
// refused: global-race
extern "C" __global__ void adds_without_atomics(const float* x, float* out, int n) {
    if (threadIdx.x == 0) out[0] = 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 256) out[0] += x[i];
}
