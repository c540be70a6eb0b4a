// /// opbench
// operator = "sum"
// workspace = { partial = "cdiv(n, 512)" }
// launch = [
//   { kernel = "reduce<128, 4>", grid = ["cdiv(n, 512)"], block = ["128"], args = ["x", "partial", "n"] },
//   { kernel = "reduce<128, 4>", grid = ["1"], block = ["128"], args = ["partial", "out", "cdiv(n, 512)"] },
// ]
// requires = ["n <= 262144"]
// ///
#include <cub/cub.cuh>
struct Less {
    __device__ bool operator()(int a, int b) const { return a < b; }
};
struct Differ {
    __device__ bool operator()(int a, int b) const { return a != b; }
};
struct Minus {
    __device__ int operator()(int a, int b) const { return a - b; }
};
struct Before {
    int sum;
    __device__ int operator()(int block) {
        const int earlier = sum;
        sum += block;
        return earlier;
    }
};
struct Plus {
    __device__ int operator()(int a, int b) const { return a + b; }
};
template <int THREADS, int ITEMS>
__global__ void reduce(const float* in, float* out, int n) {
    using Sort = cub::BlockRadixSort<float, THREADS, ITEMS, int>;
    using Merge = cub::BlockMergeSort<int, THREADS, ITEMS>;
    using Exchange = cub::BlockExchange<int, THREADS, ITEMS>;
    using Histogram = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 8>;
    using Heads = cub::BlockDiscontinuity<int, THREADS>;
    using Scan = cub::BlockScan<int, THREADS>;
    using Gaps = cub::BlockAdjacentDifference<int, THREADS>;
    __shared__ union {
        typename cub::BlockReduce<float, THREADS>::TempStorage reduce;
        typename Sort::TempStorage sort;
        typename Merge::TempStorage merge;
        typename Exchange::TempStorage exchange;
        typename Histogram::TempStorage histogram;
        typename Heads::TempStorage heads;
        typename Gaps::TempStorage gaps;
        typename Scan::TempStorage scan;
    } temp;
    __shared__ int wrong;
    __shared__ float sorted[THREADS * ITEMS];
    __shared__ unsigned bins[8];
    const int rank = threadIdx.x, first = blockIdx.x * THREADS * ITEMS;
    if (rank == 0) wrong = 0;
    float keys[ITEMS];
    int places[ITEMS];
    for (int i = 0; i < ITEMS; ++i) {
        places[i] = first + rank * ITEMS + i;
        keys[i] = places[i] < n ? in[places[i]] : 0.0f;
    }
    Sort(temp.sort).SortDescendingBlockedToStriped(keys, places);
    __syncthreads();
    bool good = true;
    for (int i = 0; i < ITEMS; ++i) {
        sorted[i * THREADS + rank] = keys[i];
        const float value = places[i] < n ? in[places[i]] : 0.0f;
        good = good && (value == keys[i] || (isnan(value) && isnan(keys[i])));
    }
    __syncthreads();
    for (int i = rank; i + 1 < THREADS * ITEMS; i += THREADS) good = good && !(sorted[i] < sorted[i + 1]);
    int numbers[ITEMS], flags[ITEMS];
    unsigned char small[ITEMS];
    for (int i = 0; i < ITEMS; ++i) numbers[i] = (rank * ITEMS + i) * 37 % (THREADS * ITEMS);  // each once
    Merge(temp.merge).Sort(numbers, Less());
    for (int i = 0; i < ITEMS; ++i) good = good && numbers[i] == rank * ITEMS + i;
    __syncthreads();
    Exchange(temp.exchange).BlockedToStriped(numbers);
    for (int i = 0; i < ITEMS; ++i) good = good && numbers[i] == i * THREADS + rank;
    __syncthreads();
    Exchange(temp.exchange).StripedToBlocked(numbers);
    for (int i = 0; i < ITEMS; ++i) numbers[i] /= 3, small[i] = numbers[i] % 8;
    __syncthreads();
    Heads(temp.heads).FlagHeads(flags, numbers, Differ());
    for (int i = 0; i < ITEMS; ++i) good = good && flags[i] == ((rank * ITEMS + i) % 3 == 0);
    __syncthreads();
    Gaps(temp.gaps).SubtractLeft(numbers, flags, Minus());
    for (int i = rank == 0; i < ITEMS; ++i) good = good && flags[i] == ((rank * ITEMS + i) % 3 == 0);
    __syncthreads();
    Histogram(temp.histogram).Histogram(small, bins);
    __syncthreads();
    good = good && bins[7] == 63 && bins[0] == 66;
    for (int i = 0; i < ITEMS; ++i) numbers[i] = 1;
    Before before = {100};
    Scan(temp.scan).InclusiveScan(numbers, flags, Plus(), before);
    for (int i = 0; i < ITEMS; ++i) good = good && flags[i] == 101 + rank * ITEMS + i;
    __syncthreads();
    Scan(temp.scan).ExclusiveScan(numbers, flags, 7, Plus());
    for (int i = 0; i < ITEMS; ++i) good = good && flags[i] == 7 + rank * ITEMS + i;
    __syncthreads();
    if (!good) atomicOr(&wrong, 1);
    __syncthreads();
    const float sum = cub::BlockReduce<float, THREADS>(temp.reduce).Sum(keys);
    if (rank == 0) out[blockIdx.x] = wrong ? INFINITY : sum;
}
