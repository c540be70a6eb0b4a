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
// The latency variant: every FMA waits for the one before it, four cycles, so a scheduler with w warps issues w / 4 per
// cycle at most. A block is one warp per scheduler; reserving 96 KiB of shared memory, which no thread uses, leaves two
// such blocks on an H200's SM and half of the rate; 48 KiB leaves four; with none, sixteen warps per scheduler hide the
// latency altogether. Volkov, "Better Performance at Lower Occupancy" (2010): it is the product of warps and
// independent instructions that counts.
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
