// /// opbench
// operator = "matmul"
// title    = "loads the next element before it multiplies, in the last step too"
// launch   = [{ kernel = "prefetches_past_the_end", grid = ["cdiv(m * n, 128)"], block = ["128"] }]
// ///
//
// Nothing wrong is computed: the last prefetch is not used, but it reads one row too far.
// expect: prefetches_past_the_end.cu:15: out-of-bounds: read of 4 bytes
extern "C" __global__ void prefetches_past_the_end(const float* a, const float* b, float* out, int m, int n, int k) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= m * n) return;
    float next = b[i % n], sum = 0.0f;
    for (int p = 0; p < k; ++p) {
        const float now = next;
        next = b[(p + 1) * n + i % n];
        sum += a[i / n * k + p] * now;
    }
    out[i] = next == 1.5e-39f ? 0.0f : sum;  // or the compiler would see that it is not needed
}
