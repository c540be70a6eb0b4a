// /// opbench
// title     = "nhwc_mma_tf32_strided in one launch: weights read as they lie, a tile's depth split over a cluster"
// builds_on = "nhwc_mma_tf32_strided"
// mechanism = [
//     "coalesced", "vectorised_access", "shared_memory_tile", "register_tile", "double_buffer", "async_copy",
//     "tensor_core", "bank_conflict_free", "split_k", "cluster",
// ]
// product   = "tf32"
// tile      = { m = "BM", n = "BN", split = "SPLIT" }
// supports  = { layout = ["nhwc"], epilogue = ["none", "add", "mask"] }
// requires  = [
//     "1 < stride <= 16", "r <= 15 and s <= 15", "((n * p + r) * q + s) * k < 2 ** 31", "n * h * w + BM < 2 ** 31",
//     "k % 32 == 0 and c % 4 == 0",
// ]
// compute_capability = "9.0"
// tune      = { BM = [64], BN = [64], STAGES = [4], SPLIT = [2, 4] }
//
// [define]
// WM       = "32 if BM == 64 else 64"
// WN       = "32 if BN == 64 else 64"
// EPILOGUE = "'plain' if epilogue == 'none' else epilogue"
// OTHER    = "epilogue != 'none'"
//
// [[launch]]
// kernel  = "conv2d_dgrad_strided_cluster"
// grid    = ["SPLIT * cdiv(n * cdiv(h, stride) * cdiv(w, stride), BM) * cdiv(c, BN)", "stride * stride"]
// block   = ["32 * (BM // WM) * (BN // WN)"]
// cluster = ["SPLIT"]
// shared  = "STAGES * (BM + BN) * 128"
// args    = [
//     "dout", "weight", "skip?", "out?", "dimage", "n", "k", "p", "q", "c", "h", "w", "r", "s", "stride", "padding",
// ]
// ///
//
// nhwc_mma_tf32_strided has few tiles for a small image; with stride 2, the longest of the four phases has 4 of the 9
// positions of a 3 x 3 filter; and its first launch, which rotates the filters, reads and writes all of them. Here the
// SPLIT blocks of a cluster divide the depth of a tile (filter positions and filters) and add their sums through
// distributed shared memory. A step covers 32 filters at one position. Their rows of channels are copied in their
// stored order, and the operand of the mma instruction is read from them word by word, as in linear_dgrad/mma_tf32; so
// no filter has to be rotated. Limit: the launch, and L2, from which each block reads its part of the filters. Ideas:
// NVIDIA CUTLASS, "strided dgrad" and split-K, with a Hopper cluster instead of a workspace.

#include <opbench/cluster_sums.cuh>
#include <opbench/matrix_columns.cuh>
#include <opbench/products.cuh>
#include <opbench/strided_phases.cuh>
using namespace opbench;

typedef Block<Product<Format::PRODUCT>, BM, BN, WM, WN, STAGES> Tile;
typedef Tile::T T;

// Fill a stage with bm pixels of a phase, and with the rows of 32 filters at one position.
struct PixelsAndWeights {
    typedef Columns<Tile> Layout;
    // the depth is split: after the end of this part, another block's part begins
    static constexpr bool pads_with_zeros = false;
    const T *dout, *weight;  // weight: this thread's chunk of the first filter
    const Window* windows;
    StageWriter<Tile> to;
    StageCursor<Tile> cursor;
    unsigned char* weights_to;
    Taps taps;
    const Phase& phase;
    int w, positions, c, s, row, a, b;  // row: of the filters of a step; a, b: the remainders of the phase
    bool inside;

    __device__ __forceinline__ PixelsAndWeights(unsigned char* memory, const T* dout_, const T* weight_,
                                                Window (&table)[BM], const Phase& phase_, const BlockPlace& tile,
                                                int start, int c_, int r, int s_)
        : dout(dout_), windows(table), to(memory), taps(start + to.chunk * 4, Tile::bk, phase_.c, phase_.r, phase_.s),
          phase(phase_), w(phase_.w), positions(r * s_), c(c_), s(s_), a(blockIdx.y / phase_.stride),
          b(blockIdx.y % phase_.stride) {
        const int chunk = threadIdx.x % Layout::in_row, column = tile.column + chunk * 4;
        row = threadIdx.x / Layout::in_row;
        weights_to = memory + Layout::swizzled_offset(row, chunk);
        weight = weight_ + column;
        inside = column < c;
        for (int i = threadIdx.x; i < BM; i += Tile::threads) table[i] = phase.window(tile.row + i);
        __syncthreads();
    }
    // Copy the next step into the next stage; stages are used cyclically.
    __device__ __forceinline__ void operator()(int) {
        constexpr int loads = BM / Tile::fill_rows;
        const int shift = (taps.i * w + taps.j) * taps.c + taps.channel;
        const unsigned tap_mask = taps.tap_mask();
        Window window[loads];
#pragma unroll
        for (int l = 0; l < loads; ++l) window[l] = windows[to.row + l * Tile::fill_rows];
#pragma unroll
        for (int l = 0; l < loads; ++l)
            copy_chunk(to[l], dout + (window[l].origin + shift), window[l].outside & tap_mask ? 0 : 16);
        const int i = (phase.r - 1 - taps.i) * phase.stride + a, j = (phase.s - 1 - taps.j) * phase.stride + b;
        const int filter = taps.channel - to.chunk * 4 + row;
        const T* const from = weight + ((size_t)filter * positions + i * s + j) * c;
        const int bytes = inside && taps.i < taps.r ? 16 : 0;
#pragma unroll
        for (int l = 0; l < Layout::step_rows / Layout::fill_rows; ++l)
            copy_chunk(weights_to + l * Tile::threads * 16, from + (size_t)l * Layout::fill_rows * positions * c,
                       bytes);
        taps.step();
        to.next_stage();
        weights_to += cursor();
    }
};

// dout [n][p][q][k], weight [k][r][s][c], other (skip or out) and dimage [n][h][w][c]
extern "C" __global__ void __launch_bounds__(Tile::threads)
    conv2d_dgrad_strided_cluster(const T* __restrict__ dout, const T* __restrict__ weight,
#if OTHER
                                 const T* __restrict__ other,
#endif
                                 T* __restrict__ dimage, int n, int k, int p, int q, int c, int h, int w, int r, int s,
                                 int stride, int padding) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Window windows[BM];
    const int a = blockIdx.y / stride, b = blockIdx.y % stride;
    const Residue down(a, r, h, stride, padding), across(b, s, w, stride, padding);
    const Phase phase(down, across, n, k, p, q, h, w, stride);
    const int tiles_n = (c + BN - 1) / BN;  // neighbouring clusters share the rows of dout, the larger operand
    const int index = (int)blockIdx.x / SPLIT;
    const BlockPlace tile = {index / tiles_n * BM, index % tiles_n * BN};
    if (tile.row >= phase.pixels()) return;
    const SplitK part(phase.depth() / Tile::bk, (int)cluster_rank(), SPLIT);
    PixelsAndWeights rows(shared, dout, weight, windows, phase, tile, part.first * Tile::bk, c, r, s);
#if !OTHER
    const T* other = nullptr;
#endif
    const ColumnsWarp<Tile> warp;
    Tile::Sums sum = {};
    multiply_stages<Tile>(sum, shared, part.steps, warp, rows);
    store_cluster_gradient<Tile, SPLIT, EPILOGUE>(sum, shared, dimage, other, warp, tile, phase.pixels(), c, phase);
}
