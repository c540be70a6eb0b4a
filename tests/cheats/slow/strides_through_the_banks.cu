// /// opbench
// operator = "sum"
// title    = "the tree's partners lie 1, 2, 4 … apart and its sums 2, 4, 8 …"
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "strides_through_the_banks"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "n"]
// ///
//
// At a distance of 16 all lanes of a warp use one bank.
// expect: strides_through_the_banks.cu:24: bank conflicts: each 4-byte shared load request takes 3.9 wavefronts where 1.0
// at: (n=4096)
extern "C" __global__ void strides_through_the_banks(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    tree[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int distance = 1; distance < 256; distance *= 2) {
        if (t * 2 * distance < 256) tree[t * 2 * distance] += tree[t * 2 * distance + distance];
        __syncthreads();
    }
    if (t == 0) atomicAdd(out, tree[0]);
}
