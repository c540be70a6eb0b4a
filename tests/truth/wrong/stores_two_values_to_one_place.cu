// /// opbench
// operator = "copy"
// title    = "threads store their own numbers into one shared place"
// launch   = [{ kernel = "stores_two_values_to_one_place", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// Whoever is last wins; one value for all would be harmless.
// expect: stores_two_values_to_one_place.cu:12: shared-race
extern "C" __global__ void stores_two_values_to_one_place(const float* x, float* out, int n) {
    __shared__ int place;
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n && x[i] > -1e30f) place = threadIdx.x;
    __syncthreads();
    if (i < n) out[i] = place >= 0 ? x[i] : 0.0f;
}
