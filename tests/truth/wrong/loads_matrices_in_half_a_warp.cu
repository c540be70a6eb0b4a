// /// opbench
// operator = "copy"
// title    = "ldmatrix in blocks of 16 threads"
// launch   = [{ kernel = "loads_matrices_in_half_a_warp", grid = ["cdiv(n, 16)"], block = ["16"] }]
// ///
//
// An instruction of the whole warp.
// expect: loads_matrices_in_half_a_warp.cu:15: partial warp
extern "C" __global__ void loads_matrices_in_half_a_warp(const float* x, float* out, int n) {
    __shared__ __align__(16) unsigned short tile[64];
    const int i = blockIdx.x * 16 + threadIdx.x;
    for (int k = threadIdx.x; k < 64; k += 16) tile[k] = 0;
    __syncthreads();
    unsigned part, row = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x % 8 * 8);
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
        : "=r"(part) : "r"(row));
    if (i < n) out[i] = x[i] + (float)part;
}
