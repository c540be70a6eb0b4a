// /// opbench
// operator = "matmul"
// title    = "matrix times vector with six tunables, for opbench tune"
// where    = ["LANES * VECTOR * UNROLL <= 512"]
// requires = ["n == 1", "k % VECTOR == 0", "k <= 12288 or STAGE == 0"]
// launch   = [{ kernel = "gemv", grid = ["cdiv(m, BLOCK // LANES * ROWS)"], block = ["BLOCK"], shared = "STAGE * 4 * k", args = ["a", "b", "out", "m", "k"] }]
//
// [tune]
// BLOCK = { from = 32, to = 1024, step = 32, first = 256 }
// LANES = { from = 1, to = 32, times = 2, first = 32 }
// ROWS = { from = 1, to = 8, step = 1 }
// VECTOR = [1, 2, 4]
// UNROLL = [1, 2, 4, 8]
// STAGE = [0, 1]
// ///
//
// LANES threads add up ROWS rows together, VECTOR floats of each at a time, UNROLL of those in flight; the vector is
// read through L1 or staged in shared memory. All bytes are a's, read once: DRAM is the limit, and what is chosen decides
// how many reads are under way. After the tunables of CLBlast's Xgemv.

template <int N>
struct alignas(4 * N) floats {
    float x[N];
};

// a [m, k], x [k], out [m].
extern "C" __global__ void __launch_bounds__(BLOCK)
    gemv(const float* __restrict__ a, const float* __restrict__ x, float* __restrict__ out, int m, int k) {
    using pack = floats<VECTOR>;
#if STAGE
    extern __shared__ __align__(16) float staged[];
    for (int i = threadIdx.x; i < k; i += BLOCK) staged[i] = x[i];
    __syncthreads();
    const float* vector = staged;
#else
    const float* vector = x;
#endif
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int row0 = (blockIdx.x * (BLOCK / LANES) + group) * ROWS;
    float sum[ROWS] = {};
#pragma unroll UNROLL
    for (int at = lane * VECTOR; at < k; at += LANES * VECTOR) {
        const pack right = *reinterpret_cast<const pack*>(vector + at);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (row0 + r >= m) continue;
            const pack left = *reinterpret_cast<const pack*>(a + (size_t)(row0 + r) * k + at);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sum[r] = fmaf(left.x[j], right.x[j], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) sum[r] += __shfl_down_sync(~0u, sum[r], step, LANES);
        if (lane == 0 && row0 + r < m) out[row0 + r] = sum[r];
    }
}
