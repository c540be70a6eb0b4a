// Convolution with stride 1 whose image is read once: a patch of it in shared memory serves all filter positions.
//
// 64 filters are wgmma's rows, height x 8 pixels its columns. One copy brings a patch of these pixels and their border,
// 128 bytes of channels each. The pixels that filter position (i, j) meets are the same bytes, begun (i, j) pixels later:
// the next eight pixels are a row of the patch further on, and the swizzle follows the address. So L2 is read 1.4 times
// instead of nine. Two warpgroups take turns, so that one stores while the other multiplies.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/wgmma.cuh>

namespace opbench {

struct PatchPlace {
    int x, y, image, filter;  // of the first pixel, and the first of 64 filters
};

// `held` slices of 128 bytes of channels of all filter positions stay in shared memory, or, where it is 0, pass through
// a ring of `ring_` stages of 8 KB. by_m: filters lie with 64 of them in a row.
template <Operand operand, int height_, int filter_rows, int filter_columns, int patches, int held, int ring_,
          bool by_m>
struct Patch {
    static constexpr int height = height_, width = 8, pixels = height * width, positions = filter_rows * filter_columns;
    static constexpr int depth = operand == tf32 ? 32 : 64, pitch = (width + filter_columns - 1) * 128;
    static constexpr int patch_bytes = (height + filter_rows - 1) * pitch, room = (patch_bytes + 1023) / 1024 * 1024;
    static constexpr int ring = held > 0 ? positions * held : ring_, filter_bytes = 64 * 128;
    static constexpr int bytes = ring * filter_bytes + patches * room, barrier_bytes = 16 * (1 + patches + ring);
    typedef float Sums[pixels / 2];

    unsigned filters, patch, turns, full, empty, filter_full, filter_empty;  // addresses
    int across, down, blocks, count, slices;

    // Of images x p x q pixels and k filters over c channels.
    __device__ __forceinline__ Patch(unsigned memory, unsigned barriers, int images, int p, int q, int k, int c)
        : filters(memory), patch(memory + ring * filter_bytes), turns(barriers), full(turns + 16),
          empty(full + 8 * patches), filter_full(empty + 8 * patches), filter_empty(filter_full + 8 * ring),
          across((q + width - 1) / width), down((p + height - 1) / height), blocks((k + 63) / 64),
          count(images * down * across * blocks), slices(held > 0 ? held : (c + depth - 1) / depth) {}
    __device__ __forceinline__ void init() const {
        barrier_init(turns, 4), barrier_init(turns + 8, 4);  // a lane of every warp
        for (int i = 0; i < patches; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 1);
        for (int i = 0; i < ring; ++i) barrier_init(filter_full + 8 * i, 1), barrier_init(filter_empty + 8 * i, 1);
        barrier_init_fence();
    }
    // Filters of one patch follow each other.
    __device__ __forceinline__ PatchPlace place(int index) const {
        const int tile = index / blocks;
        return {tile % across * width, tile / across % down * height, tile / (across * down), index % blocks * 64};
    }

    // One thread: load(address, barrier, slice, place) brings patch_bytes.
    template <class Load>
    __device__ __forceinline__ void copy_patches(const Load& load_patch) const {
        unsigned stage = 0, phase = 0;
        for (int index = blockIdx.x; index < count; index += gridDim.x)
            for (int slice = 0; slice < slices; ++slice) {
                wait_for(empty + 8 * stage, phase ^ 1);
                arrive_expect(full + 8 * stage, patch_bytes);
                load_patch(patch + stage * room, full + 8 * stage, slice, place(index));
                if (++stage == patches) stage = 0, phase ^= 1;
            }
    }
    // Another thread: load(address, barrier, slice, position, filter) brings filter_bytes.
    template <class Load>
    __device__ __forceinline__ void copy_filters(const Load& load_filter) const {
        if constexpr (held > 0) {
            arrive_expect(filter_full, ring * filter_bytes);
            for (int step = 0; step < ring; ++step)
                load_filter(filters + step * filter_bytes, filter_full, step / positions, step % positions, 0);
        } else {
            unsigned stage = 0, phase = 0;
            for (int index = blockIdx.x; index < count; index += gridDim.x)
                for (int step = 0; step < slices * positions; ++step) {
                    wait_for(filter_empty + 8 * stage, phase ^ 1);
                    arrive_expect(filter_full + 8 * stage, filter_bytes);
                    load_filter(filters + stage * filter_bytes, filter_full + 8 * stage, step / positions,
                                step % positions, place(index).filter);
                    if (++stage == ring) stage = 0, phase ^= 1;
                }
        }
    }

    __device__ __forceinline__ static void multiply(Sums& sum, unsigned filter, unsigned patch_at, int position,
                                                    int add) {
        const unsigned moved = position / filter_columns * pitch + position % filter_columns * 128;
        const unsigned long long a = descriptor(filter), b = descriptor(patch_at + moved, pitch);
#pragma unroll
        for (int part = 0; part < 4; ++part)
            wgmma<operand, by_m>(sum, a + part * (by_m ? 16 * 128 / 16 : 2), b + part * 2, add || part > 0);
    }
    // Warpgroups 1 and 2: finish(sum, place) for every other tile each. A turn begins when the one before has seen all
    // its copies arrive, as a wait by parity must never be two phases ahead.
    template <class Finish>
    __device__ __forceinline__ void work(const Finish& finish) const {
        const int own = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const bool speaks = threadIdx.x % 128 == 0;
        if constexpr (held > 0) wait_for(filter_full, 0);
        Sums sum;
        for (int number = own; (int)(blockIdx.x + number * gridDim.x) < count; number += 2) {
            wait_for(turns + 8 * own, number / 2 % 2 ^ 1 ^ own);  // the first turn of all waits for nobody
            for (int slice = 0; slice < slices; ++slice) {
                const unsigned at = number * slices + slice, stage = at % patches, patch_at = patch + stage * room;
                wait_for(full + 8 * stage, at / patches % 2);
                if constexpr (held > 0) {
                    wgmma_fence();
#pragma unroll
                    for (int position = 0; position < positions; ++position)
                        multiply(sum, filters + (slice * positions + position) * filter_bytes, patch_at, position,
                                 slice > 0 || position > 0);
                    wgmma_commit();
                    if (lane == 0 && slice == slices - 1) arrive(turns + 8 * (own ^ 1));
                    wgmma_wait<0>();  // patches are few: each is given back as soon as it was read
                    if (speaks) arrive(empty + 8 * stage);
                } else {
#pragma unroll 1
                    for (int position = 0; position < positions; ++position) {
                        const unsigned step = at * positions + position, filter = step % ring;
                        wait_for(filter_full + 8 * filter, step / ring % 2);
                        wgmma_fence();
                        multiply(sum, filters + filter * filter_bytes, patch_at, position, slice > 0 || position > 0);
                        wgmma_commit();
                        wgmma_wait<1>();  // one group stays in flight; what the one before read is given back
                        if (speaks && slice + position > 0) arrive(filter_empty + 8 * ((step - 1) % ring));
                        if (speaks && position == 0 && slice > 0) arrive(empty + 8 * ((at - 1) % patches));
                    }
                }
            }
            if constexpr (held == 0) {
                const unsigned last = number * slices + slices - 1;
                if (lane == 0) arrive(turns + 8 * (own ^ 1));
                wgmma_wait<0>();
                if (speaks) arrive(empty + 8 * (last % patches));
                if (speaks) arrive(filter_empty + 8 * ((last * positions + positions - 1) % ring));
            }
            finish(sum, place(blockIdx.x + number * gridDim.x));
        }
    }
};

}  // namespace opbench
