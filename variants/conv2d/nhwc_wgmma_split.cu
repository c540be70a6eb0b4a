// /// opbench
// mechanism = [
//     "shared_memory_tile", "register_tile", "split_k", "double_buffer", "tma", "tensor_core", "warp_specialised",
//     "cluster",
// ]
// tile      = { m = "BM", n = "BN", k = "BK", split = "SPLIT" }
// supports.layout   = ["nhwc"]
// supports.epilogue = ["none", "bias", "bias_relu", "bias_hardswish", "bias_hardsigmoid", "bias_add", "bias_add_relu"]
// requires  = [
//     "r <= 16 and s <= 16 and padding <= 16 and stride <= 8", "n * p * q + 512 < 2 ** 31", "r * s * k * c < 2 ** 31",
//     "r * s * cdiv(c, BK) >= SPLIT", "SPLIT * cdiv(n * p * q, BM) * cdiv(k, BN) < 2 ** 20",
// ]
// define.BM       = "128"
// define.BK       = "64 if PRODUCT == 'bf16' else 32"
// define.STAGES   = "196608 // ((BM + BN) * 128)"
// define.BIAS     = "epilogue != 'none'"
// define.RESIDUAL = "'add' in epilogue"
// define.EPILOGUE = "epilogue"
// compute_capability = "9.0a"
// tune      = { BN = [128, 256, 64], SPLIT = [4, 8, 2] }
// where     = ["(BN, SPLIT) in ((128, 4), (256, 8), (128, 2), (128, 8), (64, 2), (64, 4))"]
//
// [tensor_maps.map_image]
// tensor = "image"
// type   = "PRODUCT"
// element_strides = [1, "stride", "stride", 1]
//
// [tensor_maps.map_image.im2col]
// lower    = ["-padding", "-padding"]
// upper    = ["padding - s + 1", "padding - r + 1"]
// channels = "BK"
// pixels   = "BM"
//
// [tensor_maps]
// map_weight = { tensor = "weight", type = "PRODUCT", dims = ["c", "r * s", "k"], box = ["BK", 1, "BN"] }
//
// [[launch]]
// kernel  = "conv2d_nhwc_wgmma_split"
// grid    = ["SPLIT * cdiv(n * p * q, BM) * cdiv(k, BN)"]
// block   = [384]
// cluster = ["SPLIT"]
// shared  = "STAGES * ((BM + BN) * 128 + 16)"
// args    = [
//     "map_image", "map_weight", "bias?", "residual?", "out", "n", "p", "q", "k", "c", "r", "s", "stride", "padding",
// ]
//
// [variant.nhwc_wgmma_bf16_split]
// title     = "nhwc_wgmma_bf16 with split-K over the blocks of a cluster, which add partial sums in fixed order"
// builds_on = "nhwc_wgmma_bf16"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["c % 8 == 0"]
//
// [variant.nhwc_wgmma_tf32_split]
// title     = "nhwc_wgmma_tf32 with split-K over the blocks of a cluster, which add partial sums in fixed order"
// builds_on = "nhwc_wgmma_tf32"
// product   = "tf32"
// requires  = ["c % 4 == 0"]
// ///
//
// A small image has few tiles but long sums: 16 images of 7 x 7 pixels and 512 filters are 28 tiles of 128 x 128, for
// 132 multiprocessors. So the SPLIT blocks of a cluster divide the depth of a tile (filter positions and channels),
// each with its own ring of stages. Each block then leaves its sums in its shared memory. Through distributed shared
// memory, each block reads some rows of the sums of all blocks, adds them in the order of the blocks, and stores these
// rows. So neither a workspace nor a second launch is needed, unlike a depth that is split over blocks without a
// cluster. Limit: L2, as a narrow tile reads more bytes for each product; wide tiles and 8 blocks read fewest, and have
// the longest exchange. Idea: split-K in CUTLASS, with the cluster of Hopper instead of a workspace.

#include <opbench/partials.cuh>
#include <opbench/ring.cuh>
#include <opbench/tma.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Ring<STAGES, (BM + BN) * 128> Stages;
typedef Element<BK == 64> T;
constexpr int pitch = BN + 8, share = BM / SPLIT;  // of a row of sums in shared memory; rows that a block stores
static_assert(BM * pitch * 4 <= Stages::bytes, "the sums fit where the stages were");

// image [n][h][w][c], weight [k][r][s][c], bias [k], residual and out [n][p][q][k]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    conv2d_nhwc_wgmma_split(const __grid_constant__ TensorMap map_image, const __grid_constant__ TensorMap map_weight,
#if BIAS
                            const T* __restrict__ bias,
#endif
#if RESIDUAL
                            const T* __restrict__ residual,
#endif
                            T* __restrict__ out, int n, int p, int q, int k, int c, int r, int s, int stride,
                            int padding) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared);
    Stages ring(memory, memory + Stages::bytes);
    const int pixels = n * p * q, steps = (c + BK - 1) / BK;  // of a filter position
    const int rank = (int)cluster_rank();
    const SplitK part(r * s * steps, rank, SPLIT);
    const TilePlace tile = Tiles<BM, BN, 8>(pixels, k)[blockIdx.x / SPLIT];
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0) {
            const int image = tile.row / (p * q), pixel = tile.row % (p * q);
            const int x = pixel % q * stride - padding, y = pixel / q * stride - padding;
            int position = part.first / steps, channel = part.first % steps * BK;
            ring.fill(part.steps, [&](int, unsigned a, unsigned full) {
                load_windows(a, &map_image, full, channel, x, y, image, position % s, position / s);
                load(a + BM * 128, &map_weight, full, channel, position, tile.column);
                if ((channel += BK) >= c) channel = 0, ++position;
            });
        }
        __syncwarp();
        cluster_sync();
        cluster_sync();
        return;
    }
    registers_up<consumer_registers>();
    const int consumer = threadIdx.x - 128, first = consumer / 128 * 64, lane = threadIdx.x % 32;
    float sum[1][BN / 2];
    ring.drain(part.steps, [&](int step, unsigned a) {
        multiply_stage<Format::PRODUCT>(sum, a + first * 128, a + BM * 128, step > 0);
    });
    named_barrier_sync(1, 128 * consumers);  // all stages of this block have been read
    float* const sums = reinterpret_cast<float*>(shared) + (consumer / 32 * 16 + lane / 4) * pitch + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < BN / 4; ++i) store_pair(sums + i % 2 * 8 * pitch + i / 2 * 8, sum[0][i * 2], sum[0][i * 2 + 1]);
    cluster_sync();
    unsigned from[SPLIT];
#pragma unroll
    for (int z = 0; z < SPLIT; ++z) from[z] = address_in(memory + rank * share * pitch * 4, z);
#if !BIAS
    const T* bias = nullptr;
#endif
#pragma unroll 2
    for (int e = consumer; e < share * BN / 4; e += 128 * consumers) {
        const int row = e / (BN / 4), at = e % (BN / 4) * 4;
        const int to = tile.row + rank * share + row, column = tile.column + at, left = k - column;
        if (to >= pixels || left <= 0) continue;
        float4 more[SPLIT], total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int z = 0; z < SPLIT; ++z) more[z] = load_remote_float4(from[z] + (row * pitch + at) * 4);
#pragma unroll
        for (int z = 0; z < SPLIT; ++z)
            total.x += more[z].x, total.y += more[z].y, total.z += more[z].z, total.w += more[z].w;
#if RESIDUAL
        total = Residual<T>{residual}.add_four(total, (size_t)to * k + column, left, k % 2 == 0);
#endif
        store_four<BIAS, activation_of::EPILOGUE>(out + (size_t)to * k + column, total, bias + (BIAS ? column : 0),
                                                  left, k % 4 == 0);
    }
    cluster_sync();  // the others have read what this block wrote
}
