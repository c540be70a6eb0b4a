// /// opbench
// title     = "one dependent FMA chain per thread; RESERVE_KIB of shared memory per block limits the occupancy"
// mechanism = ["coalesced"]
// tune      = { BLOCK = [128], UNROLL = [32], RESERVE_KIB = [96, 48, 0] }
//
// [[launch]]
// kernel = "fma_one_chain"
// grid   = ["cdiv(n, BLOCK)"]
// block  = ["BLOCK"]
// shared = "1024 * RESERVE_KIB"
// ///
//
// This variant shows latency: every FMA waits for the previous one, four cycles, so a scheduler with w warps issues at
// most w / 4 FMAs per cycle. A block has one warp per scheduler. Reserving 96 KiB of shared memory, which no thread
// uses, allows two such blocks on a multiprocessor of an H200, and so half of the rate; 48 KiB allow four. Without a
// reservation, sixteen warps per scheduler hide the latency completely. What matters is the product of warps and
// independent instructions: Volkov, "Better Performance at Lower Occupancy" (2010).
extern "C" __global__ void fma_one_chain(const float* __restrict__ a, const float* __restrict__ b,
                                         float* __restrict__ out, int n, int rounds) {
    // a, b, out [n]
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (unsigned)n) return;
    const float slope = a[i];
    const float step = b[i];
    float sum = 0.0f;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) {
        float x = 0.125f * j;
        int round = 0;
        for (; round + UNROLL <= rounds; round += UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) x = fmaf(slope, x, step);
        }
#pragma unroll 1
        for (; round < rounds; ++round) x = fmaf(slope, x, step);
        sum += x;
    }
    out[i] = sum;
}
