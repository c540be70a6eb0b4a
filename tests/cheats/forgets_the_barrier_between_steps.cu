// /// opbench
// operator = "sum"
// title    = "waits before the tree, but not between its steps"
// launch   = [{ kernel = "forgets_the_barrier_between_steps", grid = ["1"], block = ["256"] }]
// ///
//
// Each step reads what other warps write in the step before.
// expect: forgets_the_barrier_between_steps.cu:17: shared-race: 
extern "C" __global__ void forgets_the_barrier_between_steps(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    tree[t] = own;
    __syncthreads();
    for (int distance = 128; distance > 0; distance /= 2)
        if (t < distance) tree[t] += tree[t + distance];
    if (t == 0) out[0] = tree[0];
}
