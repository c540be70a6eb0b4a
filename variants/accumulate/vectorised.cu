// /// opbench
// title     = "16-byte accesses, UNROLL vectors of both arrays in flight per thread"
// builds_on = "scalar"
// mechanism = ["coalesced", "vectorised_access", "unrolled"]
// tune      = { UNROLL = [2, 1, 4], BLOCK = [256, 512], STREAM = [0, 1] }
//
// [[launch]]
// kernel = "accumulate_vectorised"
// grid   = ["cdiv(n, 4 * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// ///
//
// Vectors of 16 bytes need a quarter of the load and store instructions. A thread issues 2 x UNROLL loads before it
// adds. STREAM marks the loads of the part evict-first, because the next micro-batch overwrites the part. Limit: HBM,
// at three passes over the arena.

// Total and new total may be the same array: the same thread reads an element before it writes it.
extern "C" __global__ void __launch_bounds__(BLOCK)
    accumulate_vectorised(const float* total, const float* __restrict__ part, float* new_total, int n) {
    // all [n], aligned to 16 bytes
    const unsigned vectors = (unsigned)n / 4, first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    const float4* totals = reinterpret_cast<const float4*>(total);
    const float4* parts = reinterpret_cast<const float4*>(part);
    float4 a[UNROLL], b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= vectors) break;
        a[u] = totals[i];
        b[u] = STREAM ? __ldcs(parts + i) : parts[i];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= vectors) break;
        reinterpret_cast<float4*>(new_total)[i] =
            make_float4(a[u].x + b[u].x, a[u].y + b[u].y, a[u].z + b[u].z, a[u].w + b[u].w);
    }
    const unsigned rest = 4 * vectors + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < 4 && rest < (unsigned)n) new_total[rest] = total[rest] + part[rest];
}
