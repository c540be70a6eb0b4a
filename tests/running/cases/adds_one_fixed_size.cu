// /// opbench
// operator = "sum"
// requires = ["n == 8 * 1024 * 1024"]
// launch = [{ zero = "out" }, { kernel = "adds", grid = ["640"], block = ["256"] }]
// ///
__global__ void adds(const float* x, float* out, int n) {
    float mine = 0.0f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 640 * 256) mine += x[i];
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(0xffffffff, mine, step);
    if (threadIdx.x % 32 == 0) atomicAdd(out, mine);
}
