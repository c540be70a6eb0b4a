// /// opbench
// title     = "each warp scans its 32 elements between barriers of its own, then the block adds the sums of the warps"
// builds_on = "kogge_stone"
// mechanism = ["fewer_barriers"]
// launch    = [{ kernel = "Kogge_Stone_rows", grid = ["rows"], block = ["256"] }]
// ///
#define SECTION_SIZE 256

__global__ void Kogge_Stone_rows(const float* X, float* Y, int rows, int N) {
    __shared__ float XY[SECTION_SIZE];
    float carry = 0.0f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    X += (size_t)blockIdx.x * N;
    Y += (size_t)blockIdx.x * N;

    for (int start = 0; start < N; start += SECTION_SIZE) {
        int i = start + threadIdx.x;
        XY[threadIdx.x] = i < N ? X[i] : 0.0f;
        for (int stride = 1; stride < 32; stride *= 2) {
            __syncwarp();
            float temp = 0.0f;
            if (lane >= stride) temp = XY[threadIdx.x - stride];
            __syncwarp();
            XY[threadIdx.x] += temp;
        }
        __syncthreads();
        float before = 0.0f, total = 0.0f;
        for (int other = 0; other < SECTION_SIZE / 32; other++) {
            float sum = XY[32 * other + 31];
            if (other < warp) before += sum;
            total += sum;
        }
        if (i < N) Y[i] = XY[threadIdx.x] + before + carry;
        carry += total;
        __syncthreads();
    }
}
