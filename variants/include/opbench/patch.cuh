// Convolution with stride 1 that reads the image once: a patch in shared memory serves all filter positions.
//
// The rows of wgmma are 64 filters, its columns height x 8 pixels. One copy loads a patch of these pixels and their
// border, 128 bytes of channels each. The pixels for filter position (i, j) are in the same patch, at an address that
// is (i, j) pixels further: every eight pixels are a row of the patch, and the swizzle depends on the address. With 3x3
// filters, L2 is read about 1.4 times instead of nine times. Two warpgroups alternate, so that one stores while the
// other multiplies.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/wgmma.cuh>

namespace opbench {

struct PatchPlace {
    int x, y, image, filter;  // the first pixel, and the first of 64 filters
};

// `resident_slices` slices (128 bytes of channels) of all filter positions stay in shared memory. With
// `resident_slices` = 0, they pass through a ring of `ring_` stages of 8 KB. by_m: a row in memory has 64 filters. Two
// `planes` give float32 accuracy (hi_lo_split.cuh); the second plane follows the first.
template <Format operand, int height_, int filter_rows, int filter_columns, int patches, int resident_slices, int ring_,
          bool by_m, int planes = 1>
struct Patch {
    static_assert(planes == 1 || resident_slices == 0, "planes of filters pass through the ring");
    static constexpr int height = height_, width = 8, pixels = height * width, positions = filter_rows * filter_columns;
    static constexpr int depth = operand == Format::tf32 ? 32 : 64, pitch = (width + filter_columns - 1) * 128;
    static constexpr int patch_bytes = (height + filter_rows - 1) * pitch,
                         patch_stride = (patch_bytes + 1023) / 1024 * 1024;
    static constexpr int stage_stride = planes * patch_stride, filter_plane = 64 * 128,
                         filter_bytes = planes * filter_plane;
    static constexpr int ring = resident_slices > 0 ? positions * resident_slices : ring_;
    static constexpr int bytes = ring * filter_bytes + patches * stage_stride,
                         barrier_bytes = 16 * (1 + patches + ring);
    typedef float Sums[pixels / 2];

    unsigned filters, patch, order_barriers, full, empty, filter_full, filter_empty;  // addresses
    int across, down, blocks, count, slices;

    // For images of p x q pixels and k filters over c channels.
    __device__ __forceinline__ Patch(unsigned memory, unsigned barriers, int images, int p, int q, int k, int c)
        : filters(memory), patch(memory + ring * filter_bytes), order_barriers(barriers), full(order_barriers + 16),
          empty(full + 8 * patches), filter_full(empty + 8 * patches), filter_empty(filter_full + 8 * ring),
          across((q + width - 1) / width), down((p + height - 1) / height), blocks((k + 63) / 64),
          count(images * down * across * blocks),
          slices(resident_slices > 0 ? resident_slices : (c + depth - 1) / depth) {}
    __device__ __forceinline__ void init() const {
        barrier_init(order_barriers, 4), barrier_init(order_barriers + 8, 4);  // one lane of every warp arrives
        for (int i = 0; i < patches; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 1);
        for (int i = 0; i < ring; ++i) barrier_init(filter_full + 8 * i, 1), barrier_init(filter_empty + 8 * i, 1);
        barrier_init_fence();
    }
    // The filters of one patch are processed one after the other.
    __device__ __forceinline__ PatchPlace place(int index) const {
        const int tile = index / blocks;
        return {tile % across * width, tile / across % down * height, tile / (across * down), index % blocks * 64};
    }

    // One thread calls this: load_patch(address, barrier, slice, place, plane) copies patch_bytes.
    template <class Load>
    __device__ __forceinline__ void copy_patches(const Load& load_patch) const {
        unsigned stage = 0, phase = 0;
        for (int index = blockIdx.x; index < count; index += gridDim.x)
            for (int slice = 0; slice < slices; ++slice) {
                wait_for(empty + 8 * stage, phase ^ 1);
                arrive_expect(full + 8 * stage, planes * patch_bytes);
                for (int plane = 0; plane < planes; ++plane)
                    load_patch(patch + stage * stage_stride + plane * patch_stride, full + 8 * stage, slice,
                               place(index), plane);
                if (++stage == patches) stage = 0, phase ^= 1;
            }
    }
    // Another thread calls this: load_filter(address, barrier, slice, position, filter, plane) copies 8 KB.
    template <class Load>
    __device__ __forceinline__ void copy_filters(const Load& load_filter) const {
        if constexpr (resident_slices > 0) {
            arrive_expect(filter_full, ring * filter_bytes);
            for (int step = 0; step < ring; ++step)
                load_filter(filters + step * filter_bytes, filter_full, step / positions, step % positions, 0, 0);
        } else {
            unsigned stage = 0, phase = 0;
            for (int index = blockIdx.x; index < count; index += gridDim.x)
                for (int step = 0; step < slices * positions; ++step) {
                    wait_for(filter_empty + 8 * stage, phase ^ 1);
                    arrive_expect(filter_full + 8 * stage, filter_bytes);
                    for (int plane = 0; plane < planes; ++plane)
                        load_filter(filters + stage * filter_bytes + plane * filter_plane, filter_full + 8 * stage,
                                    step / positions, step % positions, place(index).filter, plane);
                    if (++stage == ring) stage = 0, phase ^= 1;
                }
        }
    }

    __device__ __forceinline__ static void multiply(Sums& sum, unsigned filter, unsigned patch_address, int position,
                                                    int add) {
        const unsigned tap_offset = position / filter_columns * pitch + position % filter_columns * 128;
        const unsigned long long a = descriptor(filter), b = descriptor(patch_address + tap_offset, pitch);
#pragma unroll
        for (int part = 0; part < 4; ++part)
            wgmma<operand, by_m>(sum, a + part * (by_m ? 16 * 128 / 16 : 2), b + part * 2, add || part > 0);
    }
    // Warpgroups 1 and 2 call this: each calls finish(sum, place) for every other tile. A turn begins when the other
    // warpgroup has seen all of its copies arrive, because a wait by parity must never be two phases ahead.
    template <class Finish>
    __device__ __forceinline__ void work(const Finish& finish) const {
        const int warpgroup = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const bool is_leader = threadIdx.x % 128 == 0;
        if constexpr (resident_slices > 0) wait_for(filter_full, 0);
        Sums sum, big, small;  // big and small: with two planes
        for (int number = warpgroup; (int)(blockIdx.x + number * gridDim.x) < count; number += 2) {
            wait_for(order_barriers + 8 * warpgroup, number / 2 % 2 ^ 1 ^ warpgroup);  // the first turn does not wait
            for (int slice = 0; slice < slices; ++slice) {
                const unsigned at = number * slices + slice, stage = at % patches,
                               patch_address = patch + stage * stage_stride;
                wait_for(full + 8 * stage, at / patches % 2);
                if constexpr (resident_slices > 0) {
                    wgmma_fence();
#pragma unroll
                    for (int position = 0; position < positions; ++position)
                        multiply(sum, filters + (slice * positions + position) * filter_bytes, patch_address, position,
                                 slice > 0 || position > 0);
                    wgmma_commit();
                    if (lane == 0 && slice == slices - 1) arrive(order_barriers + 8 * (warpgroup ^ 1));
                    wgmma_wait<0>();  // there are few patches, so release each of them as soon as it has been read
                    if (is_leader) arrive(empty + 8 * stage);
                } else {
#pragma unroll 1
                    for (int position = 0; position < positions; ++position) {
                        const unsigned step = at * positions + position, filter = step % ring;
                        wait_for(filter_full + 8 * filter, step / ring % 2);
                        wgmma_fence();
                        const unsigned a = filters + filter * filter_bytes;
                        const int add = slice > 0 || position > 0;
                        if constexpr (planes == 1) {
                            multiply(sum, a, patch_address, position, add);
                        } else {
                            multiply(big, a, patch_address, position, 0);
                            wgmma_commit();
                            multiply(small, a + filter_plane, patch_address, position, add);
                            multiply(small, a, patch_address + patch_stride, position, 1);
                        }
                        wgmma_commit();
                        // one group stays in flight; release the stages that the previous group has read
                        wgmma_wait<1>();
                        if (is_leader && slice + position > 0) arrive(filter_empty + 8 * ((step - 1) % ring));
                        if (is_leader && position == 0 && slice > 0) arrive(empty + 8 * ((at - 1) % patches));
                        if constexpr (planes == 2) {  // while the small products run
#pragma unroll
                            for (int i = 0; i < pixels / 2; ++i) sum[i] = add ? sum[i] + big[i] : big[i];
                        }
                    }
                }
            }
            if constexpr (resident_slices == 0) {
                const unsigned last = number * slices + slices - 1;
                if (lane == 0) arrive(order_barriers + 8 * (warpgroup ^ 1));
                wgmma_wait<0>();
                if (is_leader) arrive(empty + 8 * (last % patches));
                if (is_leader) arrive(filter_empty + 8 * ((last * positions + positions - 1) % ring));
            }
            if constexpr (planes == 2) {
#pragma unroll
                for (int i = 0; i < pixels / 2; ++i) sum[i] += small[i];
            }
            finish(sum, place(blockIdx.x + number * gridDim.x));
        }
    }
};

}  // namespace opbench
