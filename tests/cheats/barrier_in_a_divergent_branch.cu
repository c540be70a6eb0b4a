// /// opbench
// operator = "sum"
// title    = "the lanes that add wait in the branch, the others behind it"
// launch   = [{ kernel = "barrier_in_a_divergent_branch", grid = ["1"], block = ["256"] }]
// ///
//
// A barrier must be reached by all threads of the block, or by none.
// expect: barrier_in_a_divergent_branch.cu:21: divergent-barrier: 
extern "C" __global__ void barrier_in_a_divergent_branch(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    tree[t] = own;
    __syncthreads();
    for (int distance = 128; distance > 0; distance /= 2) {
        if (t < distance) {
            tree[t] += tree[t + distance];
            __syncthreads();
        } else {
            __syncthreads();
        }
    }
    if (t == 0) out[0] = tree[0];
}
