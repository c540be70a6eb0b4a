// /// opbench
// operator = "sum"
// title    = "gives the launch a number of floats where bytes are wanted"
// launch   = [{ kernel = "asks_for_too_little_dynamic_shared", grid = ["1"], block = ["256"], shared = "256" }]
// ///
//
// 256 bytes hold 64 floats.
// expect: asks_for_too_little_dynamic_shared.cu:14: out-of-bounds: write of 4 bytes at byte 256 of the dynamic shared array
extern "C" __global__ void asks_for_too_little_dynamic_shared(const float* x, float* out, int n) {
    extern __shared__ float tree[];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    tree[t] = own;
    __syncthreads();
    for (int distance = 128; distance > 0; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t == 0) out[0] = tree[0];
}
