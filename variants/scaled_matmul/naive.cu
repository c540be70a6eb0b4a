// /// opbench
// title     = "one thread per output, threadIdx.x along the columns; each number is converted to float"
// mechanism = ["coalesced_stores", "no_division"]
// tune      = { ROWS = [8, 4] }
// supports  = { scaling = ["tensor", "row", "block"], a_dtype = ["e4m3", "e5m2"], b_dtype = ["e4m3", "e5m2"] }
// requires  = ["cdiv(m, ROWS) <= 65535"]
//
// [define]
// A_E5M2   = "a_dtype == 'e5m2'"
// B_E5M2   = "b_dtype == 'e5m2'"
// BY_ROW   = "scaling == 'row'"
// BY_BLOCK = "scaling == 'block'"
//
// [[launch]]
// kernel = "scaled_matmul_naive"
// grid   = ["cdiv(n, 32)", "cdiv(m, ROWS)"]
// block  = [32, "ROWS"]
// ///
//
// The first variant. The lanes of a warp compute neighbouring columns of out: stores are coalesced, all lanes read the
// same byte of a, and each lane reads another row of b. If blocks have their own scales, each sum of 128 products is
// scaled before it is added; other scales are applied once. Limit: two loads of a byte and two conversions per
// multiply-add.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#if A_E5M2
typedef __nv_fp8_e5m2 A;
#else
typedef __nv_fp8_e4m3 A;
#endif
#if B_E5M2
typedef __nv_fp8_e5m2 B;
#else
typedef __nv_fp8_e4m3 B;
#endif

// a [m][k], b [n][k], out [m][n]; scales: see operator.py
extern "C" __global__ void __launch_bounds__(32 * ROWS)
    scaled_matmul_naive(const A* __restrict__ a, const B* __restrict__ b, const float* __restrict__ scale_a,
                        const float* __restrict__ scale_b, __nv_bfloat16* __restrict__ out, int m, int n, int k) {
    const int row = blockIdx.y * ROWS + threadIdx.y;
    const int col = blockIdx.x * 32 + threadIdx.x;
    if (row >= m || col >= n) return;
    const int depth = BY_BLOCK ? 128 : k;  // elements of a row that share a scale
    float total = 0.0f;
    for (int first = 0; first < k; first += depth) {
        float sum = 0.0f;
        for (int i = first; i < min(k, first + depth); ++i)
            sum += float(a[(size_t)row * k + i]) * float(b[(size_t)col * k + i]);
        const int block = first / 128, blocks = (k + 127) / 128;
        total += sum * (scale_a[BY_BLOCK ? (size_t)block * m + row
                                : BY_ROW ? row
                                         : 0] *
                        scale_b[BY_BLOCK ? col / 128 * blocks + block
                                : BY_ROW ? col
                                         : 0]);
    }
    out[(size_t)row * n + col] = __float2bfloat16(total);
}
