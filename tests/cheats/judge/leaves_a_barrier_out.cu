// /// opbench
// operator = "sum"
// title    = "one barrier fewer for each step"
// launch   = [{ kernel = "leaves_a_barrier_out", grid = ["1"], block = ["256"] }]
// ///
//
// The last warp is nearly always ready.
//
// refused: shared-race
extern "C" __global__ void leaves_a_barrier_out(const float* x, float* out, int n) {
    __shared__ float parts[256];
    float mine = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) mine += x[i];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2)
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    if (threadIdx.x == 0) out[0] = parts[0];
}
