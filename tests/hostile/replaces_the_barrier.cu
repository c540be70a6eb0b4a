// /// opbench
// operator = "relu"
// title    = "its own opb_syncthreads"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: refused
extern "C" __device__ void opb_syncthreads(int) {}
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
