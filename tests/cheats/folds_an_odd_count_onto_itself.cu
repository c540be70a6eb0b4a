// /// opbench
// operator = "sum"
// title    = "halves a count that may be odd"
// launch   = [{ kernel = "folds_an_odd_count_onto_itself", grid = ["1"], block = ["256"] }]
// ///
//
// Of 5 values thread 0 reads the third while thread 2 adds the fifth to it; powers of two are right.
// expect: folds_an_odd_count_onto_itself.cu:17: shared-race: 
extern "C" __global__ void folds_an_odd_count_onto_itself(const float* x, float* out, int n) {
    __shared__ float tree[256];
    const int t = threadIdx.x;
    float own = 0.0f;
    for (int i = t; i < n; i += 256) own += x[i];
    tree[t] = own;
    __syncthreads();
    for (int count = min(n, 256); count > 1; count -= count / 2) {
        if (t < count - count / 2) tree[t] += tree[t + count / 2];
        __syncthreads();
    }
    if (t == 0) out[0] = tree[0];
}
