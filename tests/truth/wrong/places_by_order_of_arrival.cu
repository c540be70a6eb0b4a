// /// opbench
// operator = "relu"
// title    = "each thread stores at the place that an atomic counter gives it"
// launch   = [{ kernel = "places_by_order_of_arrival", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Threads arrive in any order: the elements end up in any order, too.
// expect: wrong-result
__global__ void places_by_order_of_arrival(const float* x, float* out, int n) {
    __shared__ int count;
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (i < n) out[blockIdx.x * 64 + atomicAdd(&count, 1)] = fmaxf(x[i], 0.0f);
}
