// /// opbench
// title     = "one thread per output, threadIdx.x along the columns; each thread unpacks 4-bit weights from bytes"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [[launch]]
// kernel = "int4_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. The lanes of a warp compute neighbouring columns of out: stores are coalesced, all lanes read the
// same element of a, and each lane reads another row of weights, one byte for two products. The sums of a group are
// scaled before they are added. Limit: every thread unpacks every weight that it uses, and reads it from another line
// than its neighbours.

#include <cuda_bf16.h>

// a [m][k], weight [n][k / 2], scale [groups][n], out [m][n]
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    int4_matmul_naive(const __nv_bfloat16* __restrict__ a, const unsigned char* __restrict__ weight,
                      const __nv_bfloat16* __restrict__ scale, __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    const int row = blockIdx.y * ROWS + threadIdx.y;
    const int col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    float total = 0.0f;
    for (int first = 0; first < k; first += 128) {
        float sum = 0.0f;
        for (int i = first; i < min(k, first + 128); i += 2) {
            const int two = weight[((size_t)col * k + i) / 2];
            sum += __bfloat162float(a[(size_t)row * k + i]) * (two % 16 - 8);
            sum += __bfloat162float(a[(size_t)row * k + i + 1]) * (two / 16 - 8);
        }
        total += sum * __bfloat162float(scale[(size_t)(first / 128) * n + col]);
    }
    out[(size_t)row * n + col] = __float2bfloat16(total);
}
