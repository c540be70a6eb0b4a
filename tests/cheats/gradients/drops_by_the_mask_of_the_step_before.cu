// /// opbench
// operator = "dropout"
// title    = "the mask of the step before, as a gradient has that reads the counter too early"
// supports = { training = ["yes"], counter = ["step"] }
//
// [[launch]]
// kernel = "drops_by_the_mask_of_the_step_before"
// grid   = ["cdiv(n, 256)"]
// block  = ["256"]
// args   = ["x", "step", "out", "n", "seed", "threshold - 2 ** 31", "percent"]
// ///
//
// As many elements are dropped, and as often: no statistics of the mask show it.
// expect: value
// right: uint4 word = make_uint4(i / 4, *step, 0, 0);
extern "C" __global__ void drops_by_the_mask_of_the_step_before(const float* x, const int* step, float* out, int n,
                                                                unsigned seed, int shifted, int percent) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    uint4 word = make_uint4(i / 4, *step - 1, 0, 0);  // here
    unsigned key0 = seed, key1 = 0;
    for (int round = 0; round < 10; ++round) {
        word = make_uint4(__umulhi(word.z, 0xcd9e8d57u) ^ word.y ^ key0, word.z * 0xcd9e8d57u,
                          __umulhi(word.x, 0xd2511f53u) ^ word.w ^ key1, word.x * 0xd2511f53u);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    const unsigned bits = i % 4 == 0 ? word.x : i % 4 == 1 ? word.y : i % 4 == 2 ? word.z : word.w;
    out[i] = bits >= (unsigned)shifted + 0x80000000u ? x[i] * (100.0f / (100 - percent)) : 0.0f;
}
