// Copies with the Tensor Memory Accelerator: one thread specifies a box of a tensor map, and the hardware copies it.
// Elements outside of the tensor are loaded as zeros and are not stored. Coordinates begin with the innermost
// dimension; in a load, the innermost one is a multiple of 16 bytes; in a store, none is negative. Shared addresses are
// multiples of 128 bytes, or of 1024 bytes with the 128-byte swizzle, which permutes the 16-byte chunks of eight rows:
// chunk ^ row % 8.
#pragma once

namespace opbench {

struct __align__(64) TensorMap { unsigned long long opaque[16]; };  // a `const __grid_constant__` parameter

// Return the offset of byte `offset` in contiguous rows of `span` bytes, with the swizzle for that row length.
template <int span>
__device__ __forceinline__ unsigned swizzled(unsigned offset) {
    return offset ^ (offset >> 7 & (span / 16 - 1)) << 4;
}

__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Prefetch a box into L2.
__device__ __forceinline__ void prefetch(const TensorMap* map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y)
                 : "memory");
}

// ---- tensor to shared memory; `barrier` counts the bytes when they have arrived
__device__ __forceinline__ void load(unsigned to, const TensorMap* map, unsigned barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void load(unsigned to, const TensorMap* map, unsigned barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void load(unsigned to, const TensorMap* map, unsigned barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ __forceinline__ void load(unsigned to, const TensorMap* map, unsigned barrier, int x, int y, int z, int w,
                                     int v) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}
// Copy to the same address in every block of the cluster whose bit is set in `ranks`; each block's barrier counts.
__device__ __forceinline__ void load_for(unsigned short ranks, unsigned to, const TensorMap* map, unsigned barrier,
                                         int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(ranks)
                 : "memory");
}
__device__ __forceinline__ void load_for(unsigned short ranks, unsigned to, const TensorMap* map, unsigned barrier,
                                         int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(ranks)
                 : "memory");
}
// Copy to this block, or to all `blocks` of its cluster.
template <int blocks>
__device__ __forceinline__ void load_for_all(unsigned to, const TensorMap* map, unsigned barrier, int x, int y) {
    if constexpr (blocks > 1)
        load_for((1 << blocks) - 1, to, map, barrier, x, y);
    else
        load(to, map, barrier, x, y);
}
// Copy through an im2col map: as many windows as the map specifies, beginning with the window at pixel (w, h) of an
// image, along w, then h, then images. From each window, take the pixel at position (s, r) of the filter, and its
// channels from c on.
__device__ __forceinline__ void load_windows(unsigned to, const TensorMap* map, unsigned barrier, int c, int w, int h,
                                             int image, unsigned short s, unsigned short r) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(image), "h"(s), "h"(r)
                 : "memory");
}
// The same for volumes: along w, h, d, then volumes; it takes the voxel at position (s, r, t) of the filter.
__device__ __forceinline__ void load_windows(unsigned to, const TensorMap* map, unsigned barrier, int c, int w, int h,
                                             int d, int volume, unsigned short s, unsigned short r, unsigned short t) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(d), "r"(volume), "h"(s), "h"(r), "h"(t)
                 : "memory");
}

// ---- shared memory to tensor; the storing thread commits, and waits before the source is written again
__device__ __forceinline__ void store(const TensorMap* map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void store(const TensorMap* map, unsigned from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
__device__ __forceinline__ void store(const TensorMap* map, unsigned from, int x, int y, int z, int w, int v) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
        "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
        : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Wait until all groups but the last `pending` have read their source.
template <int pending>
__device__ __forceinline__ void wait_for_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
// Wait until all groups but the last `pending` have been written; call it before the block ends.
template <int pending>
__device__ __forceinline__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace opbench
