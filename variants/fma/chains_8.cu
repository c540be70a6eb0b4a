// /// opbench
// title     = "eight independent chains per thread at full occupancy"
// builds_on = "chains_4"
// mechanism = ["coalesced", "unrolled"]
// tune      = { BLOCK = [256, 128, 512], UNROLL = [32, 8, 16, 64] }
//
// [[launch]]
// kernel = "fma_chains_8"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// This variant measures the float32 FMA rate: each warp has 8 FMAs in flight, and 16 warps per scheduler fill all issue
// slots. The loop adds 3 instructions per 8 x UNROLL FMAs (1.2 % at UNROLL=32). The two constant operands come from the
// register reuse cache, so there are no register bank conflicts. Use an n of whole waves (2048 threads per
// multiprocessor) and thousands of rounds, so that the loads do not matter. Limit: the FMA units at the clock that
// power allows.
extern "C" __global__ void fma_chains_8(const float* __restrict__ a, const float* __restrict__ b,
                                        float* __restrict__ out, int n, int rounds) {
    // a, b, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    const float slope = a[i];
    const float step = b[i];
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = 0.125f * j;
    int round = 0;
    for (; round + UNROLL <= rounds; round += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = fmaf(slope, x[j], step);
        }
    }
#pragma unroll 1
    for (; round < rounds; ++round) {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = fmaf(slope, x[j], step);
    }
    out[i] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}
