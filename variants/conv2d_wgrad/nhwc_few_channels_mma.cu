// /// opbench
// mechanism = [
//     "vectorised_access", "shared_memory_tile", "register_tile", "compile_time_sizes", "split_k", "async_copy",
//     "tensor_core",
// ]
// supports  = { layout = ["nhwc"], bias = ["no", "yes"] }
// tune      = { ROWS = [2, 1, 4], SPLIT = [264, 132, 528] }
// requires  = [
//     "k <= 128", "COLUMNS <= 256", "2 * BYTES * STAGE <= 220 * 1024", "n * cdiv(p, ROWS) < 2 ** 31",
//     "SPLIT * k * COLUMNS <= 2 ** 28",
// ]
// compute_capability = "8.0"
// workspace = { parts = "SPLIT * k * COLUMNS" }
//
// [define]
// BIAS       = "1 if bias == 'yes' else 0"
// C          = "c"
// HEIGHT     = "h"
// WIDTH      = "w"
// FILTERS    = "k"
// R          = "r"
// S          = "s"
// OUT_HEIGHT = "p"
// OUT_WIDTH  = "q"
// STRIDE     = "stride"
// PADDING    = "padding"
// COLUMNS    = "c * r * s + BIAS"
// TM         = "cdiv(k, 32)"
// WARPS_M    = "cdiv(k, 16 * TM)"
// WARPS_N    = "cdiv(COLUMNS, 32)"
// THREADS    = "32 * WARPS_M * WARPS_N"
// ACROSS     = "cdiv(q, 8)"
// LINES      = "(ROWS - 1) * stride + r"
// VEC        = "16 // BYTES"
// LEFT       = "cdiv(padding * c, VEC) * VEC"
// LENGTH     = "cdiv(LEFT - padding * c + ((ACROSS * 8 - 1) * stride + s) * c, VEC) * VEC"
// A_LENGTH   = "WARPS_M * TM * 16"
// A_PITCH    = "A_LENGTH + (8 - A_LENGTH) % (128 // BYTES)"
// STAGE      = "LINES * LENGTH + ROWS * ACROSS * 8 * A_PITCH"
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_few_channels_mma"
// grid   = ["SPLIT"]
// block  = ["THREADS"]
// shared = "2 * BYTES * STAGE"
// args   = ["image", "dout", "parts", "n"]
//
// [[launch]]
// kernel = "conv2d_wgrad_nhwc_few_channels_mma_add"
// grid   = ["cdiv(k * COLUMNS, 32)"]
// block  = [32, 16]
// args   = ["parts", "dweight", "dbias?"]
//
// [variant.nhwc_few_channels_mma_bf16]
// title     = "few input channels, bf16 mma.sync: ldmatrix transposes dout, pairs of pixels are gathered"
// builds_on = "nhwc_mma_bf16_split"
// product   = "bf16"
// supports  = { dtype = ["bf16"] }
// requires  = ["ROWS * ACROSS % 2 == 0"]
// define    = { BYTES = "2", PER_SM = "1" }
//
// [variant.nhwc_few_channels_mma_tf32]
// title     = "few input channels, TF32 mma.sync: windows are gathered from image rows in shared memory"
// builds_on = "nhwc_mma_tf32_split"
// mechanism = ["coalesced"]
// product   = "tf32"
// define    = { BYTES = "4", PER_SM = "2 if THREADS <= 256 else 1" }
//
// [variant.nhwc_few_channels_mma_f32]
// title     = "few input channels, float32 accuracy: one TF32 product plus two bf16 products of rounding errors"
// builds_on = "nhwc_mma_tf32_corrected_split"
// mechanism = ["coalesced", "operand_split"]
// product   = "tf32_corrected"
// requires  = ["n * p * q >= 128", "ROWS * ACROSS % 2 == 0"]
// define    = { BYTES = "4", PER_SM = "1" }
// ///
//
// The windows of a first layer overlap and are not aligned to 16 bytes. As an im2col matrix, AlexNet's windows would
// have 121 / 16 times as many elements as the image, each copied on its own. Here a stage consists of ROWS rows of dout
// and the image rows that they depend on, with zeros around them. Both are copied once, by 16 bytes if the row length
// allows it, while the previous stage is multiplied. Pixels are the depth of the product.
//
// All filters and all elements of a window are one tile, so dout is read once. Each lane gathers its operand from the
// window's position in the image; lanes that need the same element share the load. The pitch between rows of dout is
// chosen so that the lanes of a load use different banks. In bf16, ldmatrix transposes dout, and a lane gathers two
// pixels at a time. If the product is a promoted one, the sums of a stage (some hundred pixels) are added in float to
// those of the previous stages. A column of ones yields the gradient of the bias.
//
// SPLIT blocks share the rows, and a second kernel adds their sums in an order that does not depend on the GPU, so the
// bits are the same everywhere. Limit: for AlexNet's first layer, reading dout, mma.sync, and the loads from shared
// memory (20 for 12 products) take about the same time; expected to be 40 to 60 µs with 128 images in TF32, 70 to 120
// µs corrected, 30 µs in bf16.

#include <opbench/products.cuh>
using namespace opbench;

typedef Product<Format::PRODUCT> P;
typedef P::T T;
constexpr bool words = sizeof(T) == 4;
// DEPTH: without the column of ones; PLACES: pixels of a row of a stage
constexpr int DEPTH = R * S * C, TN = 4, PLACES = ACROSS * 8;
constexpr int STEPS = ROWS * ACROSS;          // steps of eight pixels
constexpr int TAKEN = words ? P::slices : 2;  // steps per product
constexpr bool promoted = !words || P::promoted;
static_assert(STEPS % TAKEN == 0, "a product takes whole steps");

// Copy one element to shared memory, a float without a register (cp.async); store zero and read nothing if it is
// outside.
__device__ __forceinline__ void copy_element(float* to, const float* from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(inside ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void copy_element(__nv_bfloat16* to, const __nv_bfloat16* from, bool inside) {
    *to = inside ? *from : __nv_bfloat16(0.0f);
}

// Copy `count` lines of `numbers` elements, from line `first` of a matrix with `height` lines, to to[count][pitch].
// Each line starts with `left` zeros and is filled with zeros up to `length`; a line outside of the matrix becomes
// zeros.
template <int count, int length, int pitch, int left, int numbers>
__device__ __forceinline__ void copy_lines(T* to, const T* __restrict__ from, int first, int height) {
    constexpr int vec = numbers % VEC == 0 && left % VEC == 0 ? VEC : 1, per_line = length / vec;
#pragma unroll 4
    for (int e = threadIdx.x; e < count * per_line; e += THREADS) {
        const int line = first + e / per_line, x = e % per_line * vec - left;
        const bool inside = (unsigned)line < (unsigned)height && (unsigned)x < (unsigned)numbers;
        const T* const source = inside ? from + (size_t)line * numbers + x : from;
        T* const target = to + e / per_line * pitch + e % per_line * vec;
        if (vec > 1)
            copy_chunk(target, source, inside ? 16 : 0);
        else
            copy_element(target, source, inside);
    }
}

// image [n][HEIGHT][WIDTH][C], dout [n][OUT_HEIGHT][OUT_WIDTH][FILTERS], parts [SPLIT][FILTERS][COLUMNS]
// two stages of lines [LINES][LENGTH] and gradients [ROWS][PLACES][A_PITCH]
extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)
    conv2d_wgrad_nhwc_few_channels_mma(const T* __restrict__ image, const T* __restrict__ dout,
                                       float* __restrict__ parts, int n) {
    extern __shared__ __align__(128) unsigned char memory[];
    T* const shared = reinterpret_cast<T*>(memory);
    constexpr int bands = (OUT_HEIGHT + ROWS - 1) / ROWS;
    const int begin = (int)((long long)n * bands * blockIdx.x / SPLIT);
    const int end = (int)((long long)n * bands * (blockIdx.x + 1) / SPLIT);
    const int warp = threadIdx.x / 32, quad = threadIdx.x % 32 / 4, in_quad = threadIdx.x % 4;
    const int row0 = warp / WARPS_N * TM * 16, column0 = warp % WARPS_N * TN * 8;

    auto copy_stage = [&](int unit) {
        T* const lines = shared + (unit - begin) % 2 * STAGE;
        const int item = unit / bands, row = unit % bands * ROWS;
        copy_lines<LINES, LENGTH, LENGTH, LEFT, WIDTH * C>(lines, image + (size_t)item * HEIGHT * WIDTH * C,
                                                           row * STRIDE - PADDING, HEIGHT);
        const T* const gradients = dout + (size_t)item * OUT_HEIGHT * OUT_WIDTH * FILTERS;
#pragma unroll 1
        for (int e = 0; e < ROWS; ++e) {
            const int row_pixels = row + e < OUT_HEIGHT ? OUT_WIDTH : 0;  // pixels of the row; none after the last row
            copy_lines<PLACES, A_LENGTH, A_PITCH, 0, FILTERS>(
                lines + LINES * LENGTH + e * PLACES * A_PITCH,
                gradients + (size_t)(row_pixels ? row + e : 0) * OUT_WIDTH * FILTERS, 0, row_pixels);
        }
    };
    int offset[TN];  // of this lane's columns, relative to the start of a window
    bool one[TN];
#pragma unroll
    for (int ni = 0; ni < TN; ++ni) {
        const int column = column0 + ni * 8 + quad, inside = column < DEPTH ? column : 0;
        offset[ni] = inside / (S * C) * LENGTH + inside % (S * C) + LEFT - PADDING * C;
        one[ni] = BIAS && column == DEPTH;
    }

    float total[TM][TN][4] = {};
    if (begin < end) copy_stage(begin);
    commit();
    for (int unit = begin; unit < end; ++unit) {
        if (unit + 1 < end) copy_stage(unit + 1);
        commit();
        wait<1>();
        __syncthreads();
        const T* const lines = shared + (unit - begin) % 2 * STAGE;
        const T* const gradients = lines + LINES * LENGTH + row0;
        // Fetch the operands of TAKEN steps from `first` on. Any order of the depth is correct if it is the same for
        // both.
        auto fetch = [&](int first, unsigned (&a)[P::slices][TM][4], unsigned (&b)[P::slices][TN / 2][4]) {
            auto windows_of = [&](int step) {
                return lines + step / ACROSS * STRIDE * LENGTH + step % ACROSS * 8 * STRIDE * C;
            };
            if constexpr (words) {
#pragma unroll
                for (int slice = 0; slice < P::slices; ++slice) {
                    const int step = first + slice;
                    const T* const pixels = gradients + (step * 8 + in_quad) * A_PITCH + quad;
                    const T* const windows = windows_of(step) + in_quad * STRIDE * C;
#pragma unroll
                    for (int mi = 0; mi < TM; ++mi)
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            a[slice][mi][e] = __float_as_uint(pixels[e / 2 * 4 * A_PITCH + mi * 16 + e % 2 * 8]);
#pragma unroll
                    for (int ni = 0; ni < TN; ++ni)
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const float element = windows[offset[ni] + e * 4 * STRIDE * C];
                            b[slice][ni / 2][ni % 2 * 2 + e] = __float_as_uint(one[ni] ? 1.0f : element);
                        }
                }
            } else {
                const int lane = threadIdx.x % 32;
                const T* const pixels = gradients + (first * 8 + lane % 8 + lane / 16 * 8) * A_PITCH + lane / 8 % 2 * 8;
#pragma unroll
                for (int mi = 0; mi < TM; ++mi)
                    load_matrices_transposed(a[0][mi], (unsigned)__cvta_generic_to_shared(pixels + mi * 16));
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const T* const windows = windows_of(first + e) + in_quad * 2 * STRIDE * C;
#pragma unroll
                    for (int ni = 0; ni < TN; ++ni) {
                        const unsigned short* const pair =
                            reinterpret_cast<const unsigned short*>(windows + offset[ni]);
                        const unsigned element = pair[0] | (unsigned)pair[STRIDE * C] << 16;
                        b[0][ni / 2][ni % 2 * 2 + e] = one[ni] ? 0x3f803f80u : element;
                    }
                }
            }
        };
        float stage_sum[TM][TN][4] = {};
        auto& sum = promoted ? stage_sum : total;
        // one buffer is fetched while the other is multiplied
        unsigned a[2][P::slices][TM][4], b[2][P::slices][TN / 2][4];
        fetch(0, a[0], b[0]);
#pragma unroll 1
        for (int first = 0; first < STEPS; first += 2 * TAKEN) {
            if (first + TAKEN < STEPS) fetch(first + TAKEN, a[1], b[1]);
            P::multiply(a[0], b[0], sum);
            if (first + TAKEN >= STEPS) break;
            if (first + 2 * TAKEN < STEPS) fetch(first + 2 * TAKEN, a[0], b[0]);
            P::multiply(a[1], b[1], sum);
        }
        if (promoted) {
#pragma unroll
            for (int e = 0; e < TM * TN * 4; ++e)
                total[e / (TN * 4)][e / 4 % TN][e % 4] += stage_sum[e / (TN * 4)][e / 4 % TN][e % 4];
        }
        __syncthreads();  // then the stage may be filled again
    }
    float* const block_parts = parts + (size_t)blockIdx.x * FILTERS * COLUMNS;
#pragma unroll
    for (int e = 0; e < TM * TN * 4; ++e) {
        const int filter = row0 + e / (TN * 4) * 16 + e / 2 % 2 * 8 + quad;
        const int column = column0 + e / 4 % TN * 8 + in_quad * 2 + e % 2;
        if (filter < FILTERS && column < COLUMNS)
            block_parts[filter * COLUMNS + column] = total[e / (TN * 4)][e / 4 % TN][e % 4];
    }
}

// parts [SPLIT][FILTERS][COLUMNS], dweight [FILTERS][DEPTH], dbias [FILTERS]; 32 sums a block, each by 16 threads
extern "C" __global__ void __launch_bounds__(512)
    conv2d_wgrad_nhwc_few_channels_mma_add(const float* __restrict__ parts, float* __restrict__ dweight
#if BIAS
                                           ,
                                           float* __restrict__ dbias
#endif
    ) {
    __shared__ float partial_sums[16][32];
    constexpr int all = FILTERS * COLUMNS;
    const int index = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (index < all) {
#pragma unroll 8
        for (int z = threadIdx.y; z < SPLIT; z += 16) sum += parts[(size_t)z * all + index];
    }
    partial_sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || index >= all) return;
#pragma unroll
    for (int y = 1; y < 16; ++y) sum += partial_sums[y][threadIdx.x];
    const int filter = index / COLUMNS, column = index % COLUMNS;
    if (column < DEPTH) dweight[filter * DEPTH + column] = sum;
#if BIAS
    if (column == DEPTH) dbias[filter] = sum;
#endif
}
