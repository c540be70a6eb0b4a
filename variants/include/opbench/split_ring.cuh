// float32's accuracy without a pass that splits: copies bring floats, a warpgroup of the block writes their f16 planes
// (planes.cuh), and the others multiply those. A tile of a stage has its own power of two, so that nobody needs to know
// a tensor's largest number beforehand; sums of a stage are therefore added in float, which is wanted anyhow.
#pragma once
#include <opbench/planes.cuh>
#include <opbench/ring.cuh>

namespace opbench {

// The splitting warpgroup's tile: `rows` rows of `width` floats, dense. Its planes are rows of as many f16, under the
// swizzle that spans a row; `to` is a multiple of 1024 bytes.
template <int rows, int width>
struct FloatTile {
    static constexpr int count = rows * width / 4, each = (count + 127) / 128, span = 2 * width;
    static constexpr int bytes = rows * width * 4, plane_bytes = (rows * span + 1023) / 1024 * 1024;
    float4 x[each];

    __device__ __forceinline__ explicit FloatTile(const unsigned char* from) {
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int at = threadIdx.x % 128 + i * 128;
            x[i] = count % 128 == 0 || at < count ? reinterpret_cast<const float4*>(from)[at] : all_four(0.0f);
        }
    }
    __device__ __forceinline__ unsigned most() const {
        unsigned magnitude = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) magnitude = max(magnitude, largest(x[i]));
        return largest_of_warp(magnitude);
    }
    template <int planes>
    __device__ __forceinline__ void write(unsigned char* to, int e) const {
        const float4 scale = all_four(power_of_two(e));
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int at = threadIdx.x % 128 + i * 128;
            if (count % 128 != 0 && at >= count) break;
            unsigned char* const high = to + swizzled<span>(at * 8);
            split_four<planes>(x[i], scale, reinterpret_cast<__half*>(high),
                               reinterpret_cast<__half*>(high + plane_bytes));
        }
    }
};

// `raws` stages of floats and `stages` of planes, of which `readers` warpgroups multiply; `tiles` of a stage have powers
// of two. `copies`: one thread of the splitting warpgroup copies to the stages of planes as well.
template <int raws, int raw_bytes, int stages, int stage_bytes, int tiles, int readers, bool copies>
struct SplitRing {
    static_assert(raw_bytes % 128 == 0 && stage_bytes % 1024 == 0, "as copies and the swizzle want them");
    static constexpr int barriers = stages * stage_bytes + raws * raw_bytes, found = barriers + 8 * raws + 16 * stages;
    static constexpr int powers = found + 32 * tiles, bytes = powers + 4 * tiles * stages;
    unsigned char* const shared;
    unsigned taken = 0;  // steps that a reader has behind it

    __device__ __forceinline__ explicit SplitRing(unsigned char* shared_) : shared(shared_) {}
    __device__ __forceinline__ unsigned raw_full(int raw) const { return shared_address(shared) + barriers + 8 * raw; }
    __device__ __forceinline__ unsigned full(int stage) const { return raw_full(raws + stage); }
    __device__ __forceinline__ unsigned empty(int stage) const { return raw_full(raws + stages + stage); }
    __device__ __forceinline__ float* power(int stage) const {
        return reinterpret_cast<float*>(shared + powers) + stage * tiles;
    }
    // By one thread, before the block's threads meet.
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < raws; ++i) barrier_init(raw_full(i), 1);
        for (int i = 0; i < stages; ++i) barrier_init(full(i), copies ? 5 : 4), barrier_init(empty(i), 4 * readers);
        barrier_init_fence();
    }

    // The splitting warpgroup's part: fetch(step, address, barrier) issues copies of raw_bytes in all, by one thread;
    // split(step, floats, stage, barrier, which) writes planes, with exponents from meet().
    template <class Fetch, class Split>
    __device__ __forceinline__ void feed(int steps, const Fetch& fetch, const Split& split) const {
        const auto start = [&](int step) {
            if (threadIdx.x % 128 > 0 || step >= steps) return;
            const int raw = step % raws;
            arrive_expect(raw_full(raw), raw_bytes);
            fetch(step, shared_address(shared) + stages * stage_bytes + raw * raw_bytes, raw_full(raw));
        };
        for (int step = 0; step < raws; ++step) start(step);
        for (int step = 0; step < steps; ++step) {
            const int raw = step % raws, stage = step % stages;
            wait_for(raw_full(raw), step / raws % 2);
            wait_for(empty(stage), step / stages % 2 ^ 1);
            split(step, shared + stages * stage_bytes + raw * raw_bytes, shared + stage * stage_bytes, full(stage));
            fence_async();
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(full(stage));
            start(step + raws);  // the warpgroup has met since it read them
        }
    }
    // The exponents of a step's tiles, by largest magnitudes of each warp; all have read their floats then.
    __device__ __forceinline__ void meet(int step, const unsigned (&most)[tiles], int (&exponents)[tiles]) const {
        const int thread = threadIdx.x % 128;
        unsigned* const warps = reinterpret_cast<unsigned*>(shared + found) + step % 2 * 4 * tiles;
        for (int i = 0; i < tiles; ++i)
            if (thread % 32 == 0) warps[thread / 32 * tiles + i] = most[i];
        sync_some(1, 128);
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            unsigned magnitude = 0;
            for (int warp = 0; warp < 4; ++warp) magnitude = max(magnitude, warps[warp * tiles + i]);
            exponents[i] = exponent_for(magnitude);
            if (thread == 0) power(step % stages)[i] = power_of_two(-exponents[i]);
        }
    }

    // A reader's part: multiply(stage) issues wgmma; add(powers) gets what takes the scales off again. Other warpgroups
    // multiply while this one adds.
    template <class Multiply, class Add>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply, const Add& add) {
        for (int step = 0; step < steps; ++step, ++taken) {
            const int stage = taken % stages;
            wait_for(full(stage), taken / stages % 2);
            float off[tiles];
#pragma unroll
            for (int i = 0; i < tiles; ++i) off[i] = power(stage)[i];
            wgmma_fence();
            multiply(shared_address(shared) + stage * stage_bytes);
            wgmma_commit();
            wgmma_wait<0>();
            __syncwarp();  // its lanes have read the powers
            if (threadIdx.x % 32 == 0) arrive(empty(stage));
            add(off);
        }
    }
};

}  // namespace opbench
