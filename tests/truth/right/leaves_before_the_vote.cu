// /// opbench
// operator = "relu"
// title    = "threads beyond the end leave, the others vote with those that are left"
// launch   = [{ kernel = "leaves_before_the_vote", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// __ballot_sync under a mask of lanes that are still there, which an earlier ballot of all gave.
extern "C" __global__ void leaves_before_the_vote(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const unsigned inside = __ballot_sync(0xffffffffu, i < n);
    if (i >= n) return;
    const unsigned positive = __ballot_sync(inside, x[i] > 0.0f);
    __syncwarp(inside);
    out[i] = positive >> (threadIdx.x % 32) & 1 ? x[i] : 0.0f;
}
