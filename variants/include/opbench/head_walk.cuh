// The work of a persistent attention kernel: blocks of rows of each head of each sequence. All blocks of some heads are
// walked before those of the next heads, because they read the same tensors from L2. Among these heads, the longest
// blocks (of a causal mask) come first, and thread blocks take the work in turn, forwards and backwards, so that each
// gets as much.
#pragma once

namespace opbench {

template <int rows>
struct HeadWalk {
    int blocks, heads, total, group;  // blocks of a head; heads of a sequence, of all; heads that are walked together

    __device__ __forceinline__ HeadWalk(int rows_of_head, int heads_, int sequences)
        : blocks((rows_of_head + rows - 1) / rows), heads(heads_), total(heads_ * sequences),
          group((2 * (int)gridDim.x + blocks - 1) / blocks) {}
    // Call work(block, head, sequence) for the work of this thread block; block 0 of a head is the longest.
    template <class Work>
    __device__ __forceinline__ void for_each(const Work& work) const {
        const int count = blocks * total;
        bool back = false;
        for (int start = 0; start < count; start += gridDim.x, back = !back) {
            const int index = start + (int)(back ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
            if (index >= count) continue;
            const int strip = index / (group * blocks), within = index - strip * group * blocks;
            const int together = min(group, total - strip * group), head = strip * group + within % together;
            work(within / together, head % heads, head / heads);
        }
    }
};

}  // namespace opbench
