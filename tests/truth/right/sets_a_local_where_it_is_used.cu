// /// opbench
// operator = "copy"
// title    = "a local variable is set and used under two conditions that are equal"
// launch   = [{ kernel = "sets_a_local_where_it_is_used", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The compiler cannot know that they are; no thread ever reads it before it has been set.
extern "C" __global__ void sets_a_local_where_it_is_used(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float value, pair[2];
    if (i < n) value = x[i], pair[i % 2] = value;
    __syncthreads();
    if (i < n) out[i] = 0.5f * (value + pair[i % 2]);
}
