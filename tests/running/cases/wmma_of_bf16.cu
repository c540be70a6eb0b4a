// /// opbench
// operator = "matmul"
// precision = "bf16"
// supports = { dtype = ["bf16"] }
// requires = ["m % 16 == 0", "n % 16 == 0", "k % 16 == 0"]
// launch = [{ kernel = "multiply", grid = ["n // 16", "m // 16"], block = ["32"] }]
// ///
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;
__global__ void multiply(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out, int m, int n, int k) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    const int row = blockIdx.y * 16, col = blockIdx.x * 16;
    for (int i = 0; i < k; i += 16) {
        wmma::load_matrix_sync(left, a + row * k + i, k);
        wmma::load_matrix_sync(right, b + i * n + col, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    __shared__ float tile[256];
    wmma::store_matrix_sync(tile, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32) {
        out[(row + i / 16) * n + col + i % 16] = __float2bfloat16(tile[i]);
    }
}
