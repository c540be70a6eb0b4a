// /// opbench
// operator = "relu"
// title    = "threads write neighbouring bytes of a shared word"
// launch   = [{ kernel = "neighbours_write_bytes_of_one_word", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Bytes are locations of their own.
extern "C" __global__ void neighbours_write_bytes_of_one_word(const float* x, float* out, int n) {
    __shared__ unsigned char sign[256];
    const int i = blockIdx.x * 256 + threadIdx.x, other = threadIdx.x ^ 3, j = blockIdx.x * 256 + other;
    sign[threadIdx.x] = i < n && x[i] > 0.0f;
    __syncthreads();
    if (j < n) out[j] = sign[other] ? x[j] : 0.0f;
}
