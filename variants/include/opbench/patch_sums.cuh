// The epilogue of a patch, whose rows are filters and whose columns are pixels: bias, ReLU or another operand,
// and stores with the filters innermost.
#pragma once
#include <opbench/patch.cuh>
#include <opbench/sums.cuh>

namespace opbench {

// d *= 2 ** (common + exponents[filter]): remove the scale of the planes (hi_lo_split.cuh).
template <int count>
__device__ __forceinline__ void scale_filters(float (&d)[count], int common, const int* exponents, int filter,
                                              int filters) {
    const int row = filter + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const int top = row < filters ? exponents[row] : 0, below = row + 8 < filters ? exponents[row + 8] : 0;
#pragma unroll
    for (int i = 0; i < count; ++i) d[i] = scaled(d[i], common + (i / 2 % 2 ? below : top));
}

// Add the bias of each sum's filter to d, and apply ReLU on request.
template <bool with_relu, class T, int count>
__device__ __forceinline__ void add_filter_bias(float (&d)[count], const T* bias, int filter, int filters) {
    const int row = filter + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const float top = row < filters ? widen(bias[row]) : 0.0f, below = row + 8 < filters ? widen(bias[row + 8]) : 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        d[i] += i / 2 % 2 ? below : top;
        if constexpr (with_relu) d[i] = fmaxf(d[i], 0.0f);
    }
}

// Call visit(sum, offset) for each sum whose pixel and filter are inside [images][p][q][filters]. Eight lanes access 32
// bytes of floats, a sector.
template <int count, class Visit>
__device__ __forceinline__ void each_pixel(float (&d)[count], const PatchPlace& at, int p, int q, int filters,
                                           const Visit& visit) {
    const int lane = threadIdx.x % 32, row = at.filter + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const int x = at.x + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
        if (at.y + j >= p) break;
        const size_t pixel = ((size_t)at.image * p + at.y + j) * q + x;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (x + i % 2 < q && row + i / 2 * 8 < filters)
                visit(d[j * 4 + i], (pixel + i % 2) * filters + row + i / 2 * 8);
    }
}

// A swizzled bf16 tile in shared memory, [pixels][64 filters], which belongs to one warpgroup: TMA stores or loads it.
// The sums are transposed by stmatrix; each lane provides the address of a row of pixels.
template <class Patch>
struct PixelSlab {
    static constexpr int bytes = Patch::pixels * 128;
    unsigned memory, full, phase = 0;  // full: the barrier of loads

    // slabs, barriers: the addresses of warpgroup 1; those of warpgroup 2 follow.
    __device__ __forceinline__ explicit PixelSlab(unsigned slabs, unsigned barriers = 0)
        : memory(slabs + (threadIdx.x / 128 - 1) * bytes), full(barriers + (threadIdx.x / 128 - 1) * 8) {}
    __device__ __forceinline__ static void sync_warpgroup() { named_barrier_sync(threadIdx.x / 128, 128); }
    // Return the address of this lane's row of the 16 pixels from 8 j on, in the order of stmatrix and ldmatrix.
    __device__ __forceinline__ unsigned row(int j) const {
        const unsigned lane = threadIdx.x % 32, pixel = lane % 8 + lane / 16 * 8;
        const unsigned chunk = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
        return memory + (j * 8 + pixel) * 128 + (chunk ^ pixel % 8) * 16;
    }
    // Wait until the last store has read the tile, before the tile is written again.
    __device__ __forceinline__ static void reuse() {
        if (threadIdx.x % 128 == 0) wait_for_reads<0>();
        sync_warpgroup();
    }
    template <int count>
    __device__ __forceinline__ void store_tile(const float (&d)[count], const TensorMap* map,
                                               const PatchPlace& at) const {
#pragma unroll
        for (int j = 0; j < count / 4; j += 2) {
            const float* from = d + j * 4;
            store_transposed(row(j), pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]),
                             pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
        }
        fence_async();
        sync_warpgroup();
        if (threadIdx.x % 128 == 0) {
            store(map, memory, at.filter, at.x, at.y, at.image);
            commit_stores();
        }
    }
    // d = combine(d, other) with the same tile of another tensor, which TMA loads into shared memory; that memory is
    // free afterwards.
    template <int count, class Combine>
    __device__ __forceinline__ void combine_tile(float (&d)[count], const TensorMap* map, const PatchPlace& at,
                                                 const Combine& combine) {
        if (threadIdx.x % 128 == 0) {
            arrive_expect(full, bytes);
            load(memory, map, full, at.filter, at.x, at.y, at.image);
        }
        wait_for(full, phase);
        phase ^= 1;
#pragma unroll
        for (int j = 0; j < count / 4; j += 2) {
            unsigned two[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(two[0]), "=r"(two[1]), "=r"(two[2]), "=r"(two[3])
                         : "r"(row(j))
                         : "memory");
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float* to = d + j * 4 + i * 2;
                to[0] = combine(to[0], __uint_as_float(two[i] << 16));
                to[1] = combine(to[1], __uint_as_float(two[i] & 0xffff0000u));
            }
        }
    }
    __device__ __forceinline__ static void finish() {
        if (threadIdx.x % 128 == 0) wait_for_stores<0>();
    }
};

// The consumers' part of a convolution by patches: process all tiles, add bias and apply ReLU on request, and store.
// bf16 is stored through a PixelSlab; floats are stored directly to out [images][p][q][filters].
template <bool with_bias, bool with_relu, class Patch, class T>
__device__ __forceinline__ void store_patches(const Patch& work, unsigned slabs, const TensorMap* map, const T* bias,
                                              int filters) {
    PixelSlab<Patch> slab(slabs);
    work.work([&](typename Patch::Sums& sum, const PatchPlace& at) {
        if constexpr (with_bias) add_filter_bias<with_relu>(sum, bias, at.filter, filters);
        slab.reuse();
        slab.store_tile(sum, map, at);
    });
    slab.finish();
}
template <bool with_bias, bool with_relu, class Patch, class T>
__device__ __forceinline__ void store_patches(const Patch& work, T* out, const T* bias, int p, int q, int filters) {
    work.work([&](typename Patch::Sums& sum, const PatchPlace& at) {
        if constexpr (with_bias) add_filter_bias<with_relu>(sum, bias, at.filter, filters);
        each_pixel(sum, at, p, q, filters, [&](float x, size_t to) { out[to] = x; });
    });
}

}  // namespace opbench
