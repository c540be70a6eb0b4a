// For a cooperative launch, in which all blocks run at the same time: a barrier between blocks, and the pixels of a
// block.
#pragma once

namespace opbench {

// Wait until `blocks` blocks of a launch have arrived; then each of them sees what the others wrote before. The counter
// is zero before and after a launch, so nothing has to clear it. Launches that share a counter must not overlap.
__device__ __forceinline__ void wait_for_blocks(unsigned* counter, unsigned blocks) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // each block increments twice; with the last increment, the counter becomes zero
        const unsigned most = 2 * blocks - 1;
        asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
        unsigned arrived;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
        } while (arrived < blocks);
        asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory");
    }
    __syncthreads();
}

// The vectors ("packs") of an image [pixels][packs], for a grid of parts by groups: blockIdx.x is a part of the pixels,
// blockIdx.y a group of `across` packs. In each step, every part has `down` pixels, one part after the other; the
// remaining pixels are divided evenly. A thread has one pack in each step. The first step has the last pixels of the
// image.
template <unsigned down, unsigned across, unsigned packs>
struct PartOfPixels {
    unsigned steps, rest, share;   // whole steps; the remaining pixels; the most of those that a part has
    unsigned first, stride, last;  // indices of packs of this thread, and their distance
    int count;                     // packs of this thread

    __device__ __forceinline__ explicit PartOfPixels(unsigned pixels) {
        const unsigned parts = gridDim.x, row = threadIdx.x / across;
        const auto pack_of = [=](unsigned pixel) {
            return (pixels - 1 - pixel) * packs + blockIdx.y * across + threadIdx.x % across;
        };
        steps = pixels / (parts * down);
        rest = pixels - steps * parts * down;
        share = (rest + parts - 1) / parts;
        first = pack_of(blockIdx.x * down + row);
        stride = (0u - down) * packs * parts;
        last = pack_of(steps * parts * down + blockIdx.x * share + row);
        count = (int)(steps + (row < remaining_pixels(blockIdx.x)));
    }
    __device__ __forceinline__ unsigned remaining_pixels(unsigned part) const {
        return min(share, rest - min(rest, part * share));
    }
    // Return the number of pixels of a part.
    __device__ __forceinline__ unsigned size(unsigned part) const { return steps * down + remaining_pixels(part); }
    // Return the index of this thread's pack in step k.
    __device__ __forceinline__ unsigned at(int k) const { return k < (int)steps ? first + k * stride : last; }
};

}  // namespace opbench
