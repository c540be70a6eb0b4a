// /// opbench
// title     = "ordinary cores fed by TMA: a ring of stages, a copying warp, threads that only multiply and add"
// builds_on = "warp_tile_double_buffer"
// tune      = { BN = [256, 128], UNROLL = [2, 1, 4] }
// requires  = ["k % 4 == 0 and n % 4 == 0"]
// compute_capability = "9.0a"
//
// [define]
// STAGES = "196608 // ((128 + BN) * 128)"
//
// [tensor_maps]
// map_a = { tensor = "a", box = [32, 128] }
// map_b = { tensor = "b", box = ["BN", 32], swizzle = "none" }
//
// [[launch]]
// kernel = "matmul_tma_ring"
// grid   = ["min(sm_count, cdiv(m, 128) * cdiv(n, BN))"]
// block  = [384]
// shared = "STAGES * ((128 + BN) * 128 + 16)"
// args   = ["map_a", "map_b", "out", "m", "n", "k"]
// ///
//
// The rung below spends a twentieth of its instructions on bringing the next tile, and all its threads meet at a barrier
// for each. Here the copy engine brings tiles four stages ahead, so that eight warps read, multiply and add, each at its own
// pace, and the registers of the copying warps are theirs: what is multiplied next is read meanwhile, across stages too, as
// two warps a scheduler hide little. a need not be transposed: a thread reads two k of each of its eight rows at once, which
// lie in different banks under the swizzle of 128 bytes. Blocks stay and walk over tiles. Limit: issue slots, and the last
// wave. After CUTLASS's SIMT SGEMM (A. Kerr et al., 2017).

#include <opbench/barrier.cuh>
#include <opbench/tma.cuh>
using namespace opbench;

constexpr int quads = BN / 64, stage_bytes = (128 + BN) * 128;  // float4 of b that a thread multiplies at once

// a [m][k], b [k][n], out [m][n]; a warp has 64 x (BN / 4), a thread 8 rows 8 apart and 4 columns 16 apart
extern "C" __global__ void __launch_bounds__(384, 1)
    matmul_tma_ring(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                    float* __restrict__ out, int m, int n, int k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned memory = shared_address(shared), full = memory + STAGES * stage_bytes, empty = full + 8 * STAGES;
    const int steps = (k + 31) / 32, down = (m + 127) / 128, tiles = down * ((n + BN - 1) / BN);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        barrier_init_fence();
    }
    __syncthreads();
    unsigned slot = 0, phase = 0;
    const auto next_slot = [&] {
        if (++slot == STAGES) slot = 0, phase ^= 1;
    };
    const auto row_of = [&](int tile) { return tile % down * 128; };
    const auto column_of = [&](int tile) { return tile / down * BN; };

    if (threadIdx.x < 128) {
        registers_down<40>();
        if (threadIdx.x > 0) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
            for (int step = 0; step < steps; ++step, next_slot()) {
                wait_for(empty + 8 * slot, phase ^ 1);
                arrive_expect(full + 8 * slot, stage_bytes);
                load(memory + slot * stage_bytes, &map_a, full + 8 * slot, step * 32, row_of(tile));
                load(memory + slot * stage_bytes + 128 * 128, &map_b, full + 8 * slot, column_of(tile), step * 32);
            }
        return;
    }
    registers_up<232>();
    // Lanes that differ in bit 0 read the same of a, those that differ in bit 1 the same of b (S. Gray's maxas).
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    const int own_row = warp / 4 * 64 + lane / 2 % 8, own_column = warp % 4 * (BN / 4) + (lane % 2 + lane / 16 * 2) * 4;
    const unsigned char* a_rows;  // of the stage at hand
    const float* b_rows;
    const auto take = [&] {
        wait_for(full + 8 * slot, phase);
        a_rows = shared + slot * stage_bytes + own_row * 128;
        b_rows = reinterpret_cast<const float*>(shared + slot * stage_bytes + 128 * 128) + own_column;
    };
    const auto read_a = [&](float2(&a)[8], int pair) {  // two k
#pragma unroll
        for (int r = 0; r < 8; ++r)
            a[r] = *reinterpret_cast<const float2*>(a_rows + r * 1024 + (pair / 2 ^ own_row % 8) * 16 + pair % 2 * 8);
    };
    const auto read_b = [&](float4(&b)[quads], int row) {
#pragma unroll
        for (int c = 0; c < quads; ++c) b[c] = *reinterpret_cast<const float4*>(b_rows + row * BN + c * 16);
    };
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float4 sum[8][quads] = {}, b0[quads], b1[quads];
        float2 a0[8], a1[8];
        const auto multiply = [&](const float2(&a)[8], bool second, const float4(&b)[quads]) {
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int c = 0; c < quads; ++c) {
                    const float x = second ? a[r].y : a[r].x;
                    sum[r][c].x += x * b[c].x, sum[r][c].y += x * b[c].y;
                    sum[r][c].z += x * b[c].z, sum[r][c].w += x * b[c].w;
                }
        };
        take();
        read_a(a0, 0), read_b(b0, 0);
        for (int step = 0; step < steps; ++step) {
            const unsigned read = empty + 8 * slot;
#pragma unroll UNROLL
            for (int chunk = 0; chunk < 8; ++chunk) {  // four k; what comes next is read before
                read_a(a1, chunk * 2 + 1), read_b(b1, chunk * 4 + 1);
                multiply(a0, false, b0);
                read_b(b0, chunk * 4 + 2);
                multiply(a0, true, b1);
                read_b(b1, chunk * 4 + 3);
                int next = chunk + 1;
                if (chunk == 7) {
                    next = 0, next_slot();
                    if (step + 1 < steps) take();
                }
                read_a(a0, next * 2);  // at the end of a tile once more what is there
                multiply(a1, false, b0);
                read_b(b0, next * 4);
                multiply(a1, true, b1);
            }
            __syncwarp();
            if (lane == 0) arrive(read);
        }
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            const int row = row_of(tile) + own_row + r * 8;
#pragma unroll
            for (int c = 0; c < quads; ++c) {
                const int column = column_of(tile) + own_column + c * 16;
                if (row < m && column < n) *reinterpret_cast<float4*>(out + (size_t)row * n + column) = sum[r][c];
            }
        }
    }
}
