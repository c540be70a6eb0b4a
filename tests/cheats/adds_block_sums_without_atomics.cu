// /// opbench
// operator = "sum"
// title    = "every block adds its sum to the output, plainly"
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "adds_block_sums_without_atomics"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "n"]
// ///
//
// Blocks run at once, so additions get lost; one block is right.
// expect: adds_block_sums_without_atomics.cu:28: block-race: 
extern "C" __global__ void adds_block_sums_without_atomics(const float* x, float* out,
                                      int n) {
    __shared__ float sums[8];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    float own = i < n ? x[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (t % 32 == 0) sums[t / 32] = own;
    __syncthreads();
    if (t > 0) return;
    float sum = 0.0f;
    for (int w = 0; w < 8; ++w) sum += sums[w];
    out[0] += sum;
}
