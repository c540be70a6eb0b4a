// /// opbench
// operator = "sum"
// title    = "the second launch writes where other blocks still read"
// workspace = { partial = "cdiv(n, 256)" }
//
// [[launch]]
// kernel = "reduces_partials_in_place"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "partial", "n"]
//
// [[launch]]
// kernel = "reduces_partials_in_place"
// grid = ["cdiv(n, 65536)"]
// block = ["256"]
// args = ["partial", "partial", "cdiv(n, 256)"]
//
// [[launch]]
// kernel = "reduces_partials_in_place"
// grid = ["1"]
// block = ["256"]
// args = ["partial", "out", "cdiv(n, 65536)"]
// ///
//
// Block 1 stores its sum among the partial sums of block 0; up to 256 partial sums are right.
// expect: reduces_partials_in_place.cu:31: block-race: read of 4 bytes|reduces_partials_in_place.cu:38: block-race: write of 4 bytes
extern "C" __global__ void reduces_partials_in_place(const float* x, float* out,
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
    out[blockIdx.x] = sum;
}
