// /// opbench
// title     = "nchw: a cluster of CLUSTER blocks per group, which exchange statistics in distributed shared memory"
// builds_on = "vectorised"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "cluster",
// ]
// tune      = { CLUSTER = [4, 2, 8], ITEMS = [4, 2, 8], STREAM = [0, 1] }
// supports  = { dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires  = ["VECTORS % CLUSTER == 0", "THREADS <= 1024", "THREADS * (4 * ITEMS + 32) <= 65536"]
//
// compute_capability = "9.0"
//
// [define]
// BF16    = "dtype == 'bf16'"
// SILU    = "activation == 'silu'"
// GROUPS  = "groups"
// WIDTH   = "width"
// PIXELS  = "pixels"
// LANES   = "lanes"
// VECTORS = "width * pixels // lanes"
// THREADS = "32 * cdiv(VECTORS, 32 * ITEMS * CLUSTER)"
//
// [[launch]]
// kernel  = "groupnorm_cluster"
// grid    = ["batch * groups * CLUSTER"]
// block   = ["THREADS"]
// cluster = ["CLUSTER"]
// args    = ["x", "weight", "bias", "out", "mean", "rstd"]
// ///
//
// Several small blocks share a large group instead of one large block, so a multiprocessor has blocks of several
// groups: while one computes sums, others load and store. Each block computes the mean of its part and the sum of
// squares about that mean. The parts are merged with the formula of Chan, Golub and LeVeque (1979), so one exchange is
// enough instead of two. Groups may be CLUSTER times as large as in the previous variant. Limit: HBM.

#include <opbench/barrier.cuh>
#include <opbench/row_norm.cuh>
using namespace opbench;

typedef Element<BF16> T;
constexpr int PART = WIDTH * PIXELS / CLUSTER;  // elements of a block
typedef RowPart<T, PART, LANES, THREADS> Group;
constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ float activated(float value) {
#if SILU
    return value / (1.0f + __expf(-value));
#else
    return value;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    groupnorm_cluster(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                      T* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd) {
    // x, out [batch][GROUPS][WIDTH][PIXELS]; weight, bias [GROUPS][WIDTH]; mean, rstd [batch][GROUPS]
    __shared__ float sums[1][WARPS], squared[1][WARPS];
    __shared__ float part[2];  // the mean of this block's part, and the sum of squares about it
    const int group = blockIdx.x / CLUSTER, rank = cluster_rank();
    Group own;
    own.load<STREAM>(x, blockIdx.x, true);
    const float middle = over_row<false, THREADS>(own.sum(), sums) / PART;
    const float spread = over_row<false, THREADS>(own.squares(middle), squared);
    if (threadIdx.x == 0) {
        part[0] = middle;
        part[1] = spread;
    }
    cluster_sync();
    float centres[CLUSTER], squares = 0.0f, centre = 0.0f;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) {
        const unsigned address = address_in(shared_address(part), block);
        centres[block] = load_remote(address);
        squares += load_remote(address + 4);
        centre += centres[block];
    }
    cluster_arrive();  // this block has read the values of the other blocks
    centre /= CLUSTER;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) {
        const float difference = centres[block] - centre;
        squares += PART * difference * difference;
    }
    const float factor = rsqrtf(squares / (PART * CLUSTER) + 1e-5f);
#pragma unroll
    for (int k = 0; k < Group::items; ++k) {
        if (!Group::has_vector(k)) break;
        const int channel = group % GROUPS * WIDTH + (rank * (PART / LANES) + Group::index(k)) * LANES / PIXELS;
        const float slope = factor * weight[channel], shift = bias[channel];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            own.set(k, lane, activated((own.value(k, lane) - centre) * slope + shift));
        }
    }
    own.store<STREAM>(out, blockIdx.x);
    if (rank == 0 && threadIdx.x == 0) {
        mean[group] = centre;
        rstd[group] = factor;
    }
    cluster_wait();  // the other blocks have read the values of this block
}
