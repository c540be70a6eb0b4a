// /// opbench
// title  = "a block per row scans 256 elements at a time in shared memory, two barriers for each doubling"
// launch = [{ kernel = "Kogge_Stone_rows", grid = ["rows"], block = ["256"] }]
// ///
#define SECTION_SIZE 256

__global__ void Kogge_Stone_rows(const float* X, float* Y, int rows, int N) {
    __shared__ float XY[SECTION_SIZE];
    __shared__ float carry;
    X += (size_t)blockIdx.x * N;
    Y += (size_t)blockIdx.x * N;
    if (threadIdx.x == 0) carry = 0.0f;

    for (int start = 0; start < N; start += SECTION_SIZE) {
        int i = start + threadIdx.x;
        XY[threadIdx.x] = i < N ? X[i] : 0.0f;
        for (unsigned int stride = 1; stride < SECTION_SIZE; stride *= 2) {
            __syncthreads();
            float temp = 0.0f;
            if (threadIdx.x >= stride) temp = XY[threadIdx.x - stride];
            __syncthreads();
            XY[threadIdx.x] += temp;
        }
        __syncthreads();
        if (i < N) Y[i] = XY[threadIdx.x] + carry;
        __syncthreads();
        if (threadIdx.x == 0) carry += XY[SECTION_SIZE - 1];
        __syncthreads();
    }
}
