// /// opbench
// operator = "relu"
// title    = "a plain read of the maximum spares most atomic operations"
// launch   = [{ kernel = "a_plain_read_spares_an_atomic_maximum", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// An old value costs an atomic operation more, and nothing else.
__device__ int most;
__global__ void a_plain_read_spares_an_atomic_maximum(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (i < n && most < i % 61) atomicMax(&most, i % 61);
}
