// /// opbench
// operator = "sum"
// title    = "every second element of a long input, twice"
// launch   = [{ kernel = "samples_long_inputs", grid = ["1"], block = ["256"] }]
// ///
//
// The mean of a sample is close to that of the whole.
//
// refused: wrong-result
extern "C" __global__ void samples_long_inputs(const float* x, float* out, int n) {
    __shared__ float parts[256];
    const int step = n > 1500 ? 2 : 1;
    float mine = 0.0f;
    for (int i = threadIdx.x * step; i < n; i += 256 * step) mine += step * x[i];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = parts[0];
}
