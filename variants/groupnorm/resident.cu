// /// opbench
// supports  = { dtype = ["f32", "bf16"], activation = ["none", "silu"] }
// requires  = ["BYTES == 16", "STAGES >= 1"]
// compute_capability = "9.0"
//
// [define]
// BF16   = "dtype == 'bf16'"
// SILU   = "activation == 'silu'"
// GROUPS = "groups"
// WIDTH  = "width"
// PIXELS = "pixels"
// LANES  = "lanes"
// BYTES  = "lanes * (2 if dtype == 'bf16' else 4)"
// BLOCKS = "RESIDENT // THREADS"
// ITEMS  = "cdiv(width * pixels // lanes, THREADS)"
// STAGES = "min(4, 221184 // (BLOCKS * ITEMS * THREADS * 16))"
//
// [[launch]]
// kernel = "groupnorm_resident"
// grid   = ["min(batch * groups, BLOCKS * sm_count)"]
// block  = ["THREADS"]
// shared = "STAGES * ITEMS * THREADS * 16"
// args   = ["x", "weight", "bias", "out", "mean", "rstd", "batch * groups"]
//
// [variant.resident]
// title     = "nchw: persistent blocks; cp.async loads the next groups to shared memory during the computation"
// builds_on = "cluster"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "double_buffer", "async_copy", "persistent",
// ]
// tune      = { THREADS = [1024, 512, 256], RESIDENT = [1024, 2048] }
// define    = { REGISTERS = "0" }
//
// [variant.resident_registers]
// title     = "nchw: persistent blocks; a group moves to registers, and the next one is loaded to its place at once"
// builds_on = "resident"
// mechanism = [
//     "coalesced", "vectorised_access", "block_reduction", "fewer_barriers", "warp_shuffle", "compile_time_sizes",
//     "fewer_passes", "double_buffer", "async_copy", "persistent", "register_tile",
// ]
// tune      = { THREADS = [512, 1024, 256], RESIDENT = [512, 1024] }
// where     = ["(THREADS, RESIDENT) in ((512, 512), (1024, 1024), (256, 1024))"]
// requires  = ["ITEMS * RESIDENT <= 8192"]
// define    = { REGISTERS = "1" }
// ///
//
// In `cluster`, the blocks of a cluster start together and wait for each other, and each new block begins by waiting
// for memory. Here a multiprocessor keeps its blocks (persistent), and shared memory holds STAGES groups per block: the
// block sums and stores one group while the others are loaded. As soon as a vector is stored, the same vector of a
// later group is loaded to its place, so even a single stage overlaps loads with stores. Each thread reads only vectors
// that it has copied itself, so only the two sums need barriers. Limit: HBM; the first and the last group of each block
// overlap with nothing.
//
// In `resident`, a group that fills half of shared memory leaves no room for a second one, so nothing is loaded while
// the block computes the sums. In `resident_registers`, a thread moves its vectors to registers and loads the next
// group to their place before it computes the sums. Sums and results then need no access to shared memory.

#include <opbench/activations.cuh>
#include <opbench/tile.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Packed<T, LANES> Pack;
constexpr int SIZE = WIDTH * PIXELS, VECTORS = SIZE / LANES, WARPS = THREADS / 32;
constexpr int UNROLLED = REGISTERS ? ITEMS : 4;  // unrolled completely, so that indices into registers are constants

// Call body(k, index of vector k in the group) for each vector of this thread.
template <class Body>
__device__ __forceinline__ void for_each_vector(const Body& body) {
#pragma unroll UNROLLED
    for (int k = 0; k < ITEMS; ++k) {
        const int index = k * THREADS + threadIdx.x;
        if (VECTORS % THREADS == 0 || index < VECTORS) body(k, index);
    }
}

// x, out [batch][GROUPS][WIDTH][PIXELS]; weight, bias [GROUPS][WIDTH]; mean, rstd [count]
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    groupnorm_resident(const Pack* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                       Pack* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int count) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float sums[1][WARPS], squared[1][WARPS];
    Pack* thread_packs = reinterpret_cast<Pack*>(shared) + threadIdx.x;  // this thread's vectors in a stage
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        const int group = blockIdx.x + stage * gridDim.x;
        if (group < count)
            for_each_vector([&](int k, int index) {
                copy_chunk(thread_packs + (stage * ITEMS + k) * THREADS, x + (size_t)group * VECTORS + index, 16);
            });
        commit();
    }
    int stage = 0;
    for (int group = blockIdx.x; group < count; group += gridDim.x) {
        const Pack* const from = thread_packs + stage * ITEMS * THREADS;
        const int later = group + STAGES * gridDim.x;
        const auto fetch_later = [&](int k, int index) {
            if (later < count)
                copy_chunk(thread_packs + (stage * ITEMS + k) * THREADS, x + (size_t)later * VECTORS + index, 16);
        };
        wait<STAGES - 1>();
#if REGISTERS
        Pack packs[ITEMS];
        for_each_vector([&](int k, int index) {
            packs[k] = from[k * THREADS];
            fetch_later(k, index);
        });
        commit();  // also if it is empty, so that wait<STAGES - 1> counts groups correctly
        const auto vector = [&](int k) { return packs[k]; };
#else
        const auto vector = [&](int k) { return from[k * THREADS]; };
#endif
        float sum = 0.0f, squares = 0.0f;
        for_each_vector([&](int k, int) {
            const Pack pack = vector(k);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) sum += lane_of<T>(pack, lane);
        });
        const float centre = over_row<false, THREADS>(sum, sums) / SIZE;
        for_each_vector([&](int k, int) {
            const Pack pack = vector(k);
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float difference = lane_of<T>(pack, lane) - centre;
                squares += difference * difference;
            }
        });
        const float factor = rsqrtf(over_row<false, THREADS>(squares, squared) / SIZE + 1e-5f);
        for_each_vector([&](int k, int index) {
            const Pack pack = vector(k);
            const int channel = group % GROUPS * WIDTH + index * LANES / PIXELS;
            const float slope = factor * weight[channel], shift = bias[channel];
            Vector<T, LANES> result;
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                const float value = (lane_of<T>(pack, lane) - centre) * slope + shift;
                result.lane(lane) = (T)(SILU ? activation<Function::silu>(value) : value);
            }
            out[(size_t)group * VECTORS + index] = result.raw;
            if (!REGISTERS) fetch_later(k, index);
        });
        if (!REGISTERS) commit();
        stage = (stage + 1) % STAGES;
        if (threadIdx.x == 0) {
            mean[group] = centre;
            rstd[group] = factor;
        }
    }
}
