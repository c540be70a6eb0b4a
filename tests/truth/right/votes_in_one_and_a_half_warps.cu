// /// opbench
// operator = "relu"
// title    = "votes in blocks of 48 threads under a full mask"
// launch   = [{ kernel = "votes_in_one_and_a_half_warps", grid = ["cdiv(n, 48)"], block = ["48"] }]
// ///
//
// Lanes of the mask that the block does not have take no part in a vote.
extern "C" __global__ void votes_in_one_and_a_half_warps(const float* x, float* out, int n) {
    const int i = blockIdx.x * 48 + threadIdx.x;
    const float v = i < n ? x[i] : 0.0f;
    const unsigned positive = __ballot_sync(0xffffffffu, v > 0.0f);
    if (i < n) out[i] = positive >> threadIdx.x % 32 & 1 ? v : 0.0f;
}
