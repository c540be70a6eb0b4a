// /// opbench
// operator = "relu"
// launch = [{ kernel = "relu_staged", grid = ["cdiv(n, 512)"], block = ["128"] }]
// ///
#include <cuda_pipeline.h>

__global__ void relu_staged(const float* x, float* out, int n) {
    __shared__ float stage[2][256];
    const int first = blockIdx.x * 512;
    for (int half = 0; half < 2; ++half) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) {
            const int at = first + half * 256 + i;
            __pipeline_memcpy_async(&stage[half][i], at < n ? &x[at] : x, sizeof(float), at < n ? 0 : sizeof(float));
        }
        __pipeline_commit();
    }
    for (int half = 0; half < 2; ++half) {
        if (half == 0) {
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        for (int i = 255 - threadIdx.x; i >= 0; i -= blockDim.x) {
            const int at = first + half * 256 + i;
            if (at < n) out[at] = fmaxf(stage[half][i], 0.0f);
        }
    }
}
