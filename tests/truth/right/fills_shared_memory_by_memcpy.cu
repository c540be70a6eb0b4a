// /// opbench
// operator = "relu"
// title    = "each thread fills 7 bytes of shared memory by memcpy"
// launch   = [{ kernel = "fills_shared_memory_by_memcpy", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The neighbour's bytes are read behind a barrier.
extern "C" __global__ void fills_shared_memory_by_memcpy(const float* x, float* out, int n) {
    __shared__ char part[64 * 7];
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    char own[8];
    for (int k = 0; k < 8; ++k) own[k] = (char)(i + k * k);
    memcpy(part + 7 * threadIdx.x, own, 7);
    __syncthreads();
    if (i < n && part[7 * (63 - threadIdx.x)] == 99) out[i] = fmaxf(x[i], 0.0f);
}
