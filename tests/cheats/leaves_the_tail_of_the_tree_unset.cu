// /// opbench
// operator = "sum"
// title    = "stores only the elements that there are and adds up all"
// launch   = [{ kernel = "leaves_the_tail_of_the_tree_unset", grid = ["1"], block = ["256"] }]
// ///
//
// Threads beyond n store nothing, but the tree reads their place.
// expect: leaves_the_tail_of_the_tree_unset.cu:17: uninitialised-shared: read of uninitialised shared memory: 4 bytes
extern "C" __global__ void leaves_the_tail_of_the_tree_unset(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    if (t < n) tree[t] = own;
    __syncthreads();
    for (int distance = 128; distance > 0; distance /= 2) {
        if (t < distance) tree[t] += tree[t + distance];
        __syncthreads();
    }
    if (t == 0) out[0] = tree[0];
}
