// A tile of an image in shared memory, whose rows TMA copies all at once. Each row has its own barrier, so that threads
// multiply the first rows while the last ones are still in flight.
#pragma once

#include <opbench/barrier.cuh>

namespace opbench {

// `rows` rows, copied by the first lanes of `warps` warps. Threads go down `parts` parts of the tile at the same time;
// the first rows of the parts are `step` rows apart.
template <int rows, int parts, int step, int warps>
struct TileRows {
    unsigned barriers;  // address of 8 bytes for each row
    int needed;         // only this many rows, from the top, are copied

    // Call body(row) for each row of this thread: the first row of every part, then the second row of every part, and
    // so on.
    template <class Body>
    __device__ __forceinline__ void for_each_own_row(const Body& body) const {
        if (threadIdx.x % 32 != 0) return;
        for (int item = threadIdx.x / 32; item < (rows > parts * step ? rows : parts * step); item += warps) {
            const int row = item < parts * step ? item % parts * step + item / parts : item;
            if (row < needed) body(row);
        }
    }
    // Call `init` and `copy` before the threads of the block synchronise; `load(row, barrier)` starts a copy.
    __device__ __forceinline__ void init() const {
        for_each_own_row([&](int row) { barrier_init(barriers + row * 8, 1); });
        if (threadIdx.x % 32 == 0) barrier_init_fence();
    }
    template <class Load>
    __device__ __forceinline__ void copy(unsigned bytes, const Load& load) const {
        for_each_own_row([&](int row) {
            arrive_expect(barriers + row * 8, bytes);
            load(row, barriers + row * 8);
        });
    }
    // Wait until all copies have arrived: a copy must not outlive its block, even that of a row that no thread reads.
    __device__ __forceinline__ void wait_for_all() const {
        for_each_own_row([&](int row) { wait_for(barriers + row * 8, 0); });
    }
};

}  // namespace opbench
