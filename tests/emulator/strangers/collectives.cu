// /// opbench
// operator = "sum"
// workspace = { partial = "cdiv(n, 512)" }
// launch = [
//   { kernel = "reduce<128, 4>", grid = ["cdiv(n, 512)"], block = ["128"], args = ["x", "partial", "n"] },
//   { kernel = "reduce<128, 4>", grid = ["1"], block = ["128"], args = ["partial", "out", "cdiv(n, 512)"] },
// ]
// requires = ["n <= 262144"]
// ///
#include <cuda_fp8.h>

#include <cub/cub.cuh>
template <int THREADS, int ITEMS>
__global__ void reduce(const float* in, float* out, int n) {
    using Reduce = cub::BlockReduce<float, THREADS>;
    using Scan = cub::BlockScan<int, THREADS>;
    using Load = cub::BlockLoad<float, THREADS, ITEMS, cub::BLOCK_LOAD_DIRECT>;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
    } temp;
    __shared__ typename cub::WarpReduce<float>::TempStorage of_warps[THREADS / 32];
    const int first = blockIdx.x * THREADS * ITEMS;
    float items[ITEMS];
    Load().Load(in + first, items, n - first, 0.0f);
    const float sum = Reduce(temp.reduce).Sum(items);
    __syncthreads();
    int before, all;
    Scan(temp.scan).ExclusiveSum((int)threadIdx.x, before, all);
    const bool scanned = before == (int)threadIdx.x * ((int)threadIdx.x - 1) / 2 && all == THREADS * (THREADS - 1) / 2;
    const float lanes = cub::WarpReduce<float>(of_warps[threadIdx.x / 32]).Sum(1.0f);
    const __nv_fp8_e4m3 narrow(1.0625f), largest(1000.0f);
    const bool narrowed = float(narrow) == 1.0f && float(largest) == 448.0f &&
                          float(__nv_fp8_e5m2(0.4375f)) == 0.4375f &&
                          float(__nv_fp8_e4m3(0.001953125f)) == 0.001953125f;
    if (threadIdx.x == 0) out[blockIdx.x] = scanned && lanes == 32.0f && narrowed ? sum : INFINITY;
}
