// /// opbench
// title     = "one thread per output, threadIdx.x along the columns; each thread searches for the group of its row"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "grouped_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. The lanes of a warp compute neighbouring columns of out: stores are coalesced, all lanes read the
// same element of a, and each lane reads another row of the group's matrix. Limit: two loads per multiply-add.

#include <cuda_bf16.h>

// a [m][k], b [groups][n][k], ends [groups], out [m][n]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    grouped_matmul_naive(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                         const int* __restrict__ ends, __nv_bfloat16* __restrict__ out, int m, int n, int k,
                         int groups) {
    const int row = blockIdx.y * ROWS + threadIdx.y;
    const int col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    int group = 0;
    while (group < groups - 1 && row >= ends[group]) ++group;
    const __nv_bfloat16* matrix = b + (size_t)group * n * k;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i)
        sum += __bfloat162float(a[(size_t)row * k + i]) * __bfloat162float(matrix[(size_t)col * k + i]);
    out[(size_t)row * n + col] = __float2bfloat16(sum);
}
