// /// opbench
// title     = "wgmma with weights unpacked in registers: one warpgroup unpacks while the other one multiplies"
// builds_on = "mma"
// mechanism = [
//     "shared_memory_tile", "register_tile", "bank_conflict_free", "double_buffer", "tma", "tensor_core",
//     "warp_specialised", "persistent",
// ]
// product   = "bf16"
// tile      = { m = "BM", n = 128, k = 128 }
// tune      = { BM = [128, 64], GROUP = [8, 16] }
// requires  = ["k % 32 == 0 and n % 8 == 0"]
// define.STAGES = "4 if BM == 128 else 8"
// compute_capability = "9.0a"
//
// [tensor_maps]
// map_a      = { tensor = "a", box = [64, "BM"] }
// map_weight = { tensor = "weight", box = [64, 128], swizzle = "64B" }
// map_out    = { tensor = "out", box = [16, "BM"], swizzle = "none" }
//
// [[launch]]
// kernel = "int4_matmul_wgmma"
// grid   = ["min(sm_count, cdiv(n, 128) * cdiv(m, BM))"]
// block  = [384]
// shared = "STAGES * (BM * 256 + 8192 + 16) + 8 * BM * 32"
// args   = ["map_a", "map_weight", "scale", "map_out", "m", "n", "k"]
// ///
//
// wgmma takes 64 rows of its first operand from registers: these are the weights, in the order that the instruction
// needs. Each lane reads its two rows of a group completely (the four lanes of a row share this load as a broadcast)
// and selects its bytes by a permutation. A warpgroup unpacks a group of 128 along k, multiplies it, and adds the
// scaled sums in float32. The warpgroups do not wait for each other, so one unpacks and adds while the other
// multiplies. The result is transposed; stmatrix writes it back in row order to shared memory, and TMA stores it.
// Limit: the instructions that unpack and add, in addition to the tensor cores. Idea: Machete (Neural Magic, 2024).

#include <opbench/byte_wgmma.cuh>
#include <opbench/packed_weights.cuh>
#include <opbench/sums.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int A_BYTES = BM * 256;  // two boxes of 64 elements along k
typedef Ring<STAGES, A_BYTES + 8192> Stages;
typedef Tiles<128, BM, GROUP> TileScheduler;  // rows of weights, rows of a

__device__ __forceinline__ uint4 load_words(unsigned address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
    return words;
}

// a [m][k], weight [n][k / 2], scale [groups][n], out [m][n]
extern "C" __global__ void __launch_bounds__(ring_threads, 1)
    int4_matmul_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_weight,
                      const __nv_bfloat16* __restrict__ scale, const __grid_constant__ TensorMap map_out, int m, int n,
                      int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), slabs = memory + Stages::bytes;
    Stages ring(memory, slabs + 8 * BM * 32);
    const TileScheduler scheduler(n, m);
    const int groups = (k + 127) / 128;
    ring.start();

    if (threadIdx.x < 128) {
        registers_down<copier_registers>();
        if (threadIdx.x == 0)
            scheduler.for_each_tile([&](TilePlace tile) {
                ring.fill(groups, [&](int group, unsigned a, unsigned full) {
                    load(a, &map_a, full, group * 128, tile.column);
                    load(a + BM * 128, &map_a, full, group * 128 + 64, tile.column);
                    load(a + A_BYTES, &map_weight, full, group * 64, tile.row);
                });
            });
    } else {
        registers_up<consumer_registers>();
        const int lane = threadIdx.x % 32, select = select_byte(lane % 4);
        const int line = (threadIdx.x / 32 - 4) * 16 + lane / 4;  // the lane's first row of weights in the tile
        const unsigned slab = slabs + (threadIdx.x / 32 - 4) * (BM * 32);
        float sum[BM / 2], total[BM / 2];
        scheduler.for_each_tile([&](TilePlace tile) {
            float scales[2];
#pragma unroll
            for (int i = 0; i < BM / 2; ++i) total[i] = 0.0f;
            drain_promoted(
                ring, groups,
                [&](int group, unsigned a) {
                    unsigned left[8][4];  // 16 elements along k each
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int row = tile.row + line + half * 8;
                        scales[half] = row < n ? __bfloat162float(scale[(size_t)group * n + row]) : 0.0f;
                        const unsigned at = (line + half * 8) * 64;
#pragma unroll
                        for (int chunk = 0; chunk < 4; ++chunk) {
                            const uint4 words = load_words(a + A_BYTES + swizzled<64>(at + chunk * 16));
                            left[chunk * 2][half] = two_weights(words.x, select);
                            left[chunk * 2][half + 2] = two_weights(words.y, select);
                            left[chunk * 2 + 1][half] = two_weights(words.z, select);
                            left[chunk * 2 + 1][half + 2] = two_weights(words.w, select);
                        }
                    }
                    wgmma_fence();
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        wgmma<Format::bf16>(sum, left[i], descriptor(a + i / 4 * (BM * 128)) + i % 4 * 2, i > 0);
                },
                [&](int) {
#pragma unroll
                    for (int i = 0; i < BM / 2; ++i) total[i] += sum[i] * scales[i / 2 % 2];
                });
            if (lane == 0) wait_for_reads<0>();  // the last store has read this shared memory
            __syncwarp();
#pragma unroll
            for (int j = 0; j < BM / 16; ++j) {  // 16 rows of a per step
                const float* d = total + j * 8;
                store_transposed(slab + (j * 16 + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16,
                                 pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]),
                                 pack_bf16(d[6], d[7]));
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                const int column = tile.row + line;
                if (column < n) store(&map_out, slab, column, tile.column);
                commit_stores();
            }
        });
        if (lane == 0) wait_for_stores<0>();
    }
}
