// /// opbench
// title     = "four independent FMA chains per thread; RESERVE_KIB as in one_chain"
// builds_on = "one_chain"
// mechanism = ["coalesced", "unrolled"]
// tune      = { BLOCK = [128], UNROLL = [16], RESERVE_KIB = [96, 48, 0] }
//
// [[launch]]
// kernel = "fma_chains_4"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// shared = "1024 * RESERVE_KIB"
// ///
//
// Each warp has four FMAs in flight, as many as the latency of four cycles allows, so one or two warps per scheduler
// are enough (Volkov, "Better Performance at Lower Occupancy", 2010). Limit: with so few warps, every delay of one
// warp, such as the branch of its loop, is an idle cycle.
extern "C" __global__ void fma_chains_4(const float* __restrict__ a, const float* __restrict__ b,
                                        float* __restrict__ out, int n, int rounds) {
    // a, b, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    const float slope = a[i];
    const float step = b[i];
    float sum = 0.0f;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = 0.125f * (4 * half + j);
        int round = 0;
        for (; round + UNROLL <= rounds; round += UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int j = 0; j < 4; ++j) x[j] = fmaf(slope, x[j], step);
            }
        }
#pragma unroll 1
        for (; round < rounds; ++round) {
#pragma unroll
            for (int j = 0; j < 4; ++j) x[j] = fmaf(slope, x[j], step);
        }
        sum += (x[0] + x[1]) + (x[2] + x[3]);
    }
    out[i] = sum;
}
