// /// opbench
// operator = "sum"
// launch = [{ kernel = "skips_zero_tiles", grid = ["1"], block = ["128"] }]
// ///
__global__ void skips_zero_tiles(const float* x, float* out, int n) {
    __shared__ float tile[128];
    __shared__ float part[4];
    float sum = 0.0f;
    for (int base = 0; base < n; base += 128) {
        tile[threadIdx.x] = base + threadIdx.x < n ? x[base + threadIdx.x] : 0.0f;
        __syncthreads();
        bool zero = true;
        for (int j = threadIdx.x % 32; j < 128; j += 32) zero = zero && tile[j] == 0.0f;
        if (__all_sync(0xffffffff, zero)) continue;  // BUG: no barrier on this path
        sum += tile[127 - threadIdx.x];
        __syncthreads();
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = part[0] + part[1] + part[2] + part[3];
}
