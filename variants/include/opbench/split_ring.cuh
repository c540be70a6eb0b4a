// float32 accuracy without a separate pass that splits: TMA loads floats, one warpgroup of the block writes their f16
// planes (hi_lo_split.cuh), and the others multiply the planes. Each tile of a stage has its own scale, a power of two,
// so a tensor's largest magnitude need not be known. Therefore the sums of each stage are added in float.
#pragma once
#include <opbench/hi_lo_split.cuh>
#include <opbench/ring.cuh>

namespace opbench {

// A tile of the splitting warpgroup: `rows` rows of `width` floats, contiguous. Each plane has as many f16, with the
// swizzle for the length of a row; `to` is a multiple of 1024 bytes. The floats are read twice, so that few registers
// are needed.
template <int rows, int width>
struct FloatTile {
    static constexpr int count = rows * width / 4, each = (count + 127) / 128, span = 2 * width;
    static constexpr int bytes = rows * width * 4, plane_bytes = (rows * span + 1023) / 1024 * 1024;

    // Call visit(four floats, their index).
    template <class Visit>
    __device__ __forceinline__ static void for_each_float4(const unsigned char* from, const Visit& visit) {
        float4 x[each];
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int at = threadIdx.x % 128 + i * 128;
            x[i] = count % 128 == 0 || at < count ? reinterpret_cast<const float4*>(from)[at] : broadcast_float4(0.0f);
        }
#pragma unroll
        for (int i = 0; i < each; ++i) visit(x[i], threadIdx.x % 128 + i * 128);
    }
    // Return the largest magnitude of this thread's floats.
    __device__ __forceinline__ static unsigned largest_magnitude(const unsigned char* from) {
        unsigned magnitude = 0;
        for_each_float4(from, [&](const float4& x, int) { magnitude = max(magnitude, largest(x)); });
        return magnitude;
    }
    template <int planes, class Observe>
    __device__ __forceinline__ static void write(const unsigned char* from, unsigned char* to, int e,
                                                 const Observe& observe) {
        const float4 scale = broadcast_float4(power_of_two(e));
        for_each_float4(from, [&](const float4& x, int at) {
            if (count % 128 != 0 && at >= count) return;
            unsigned char* const high = to + swizzled<span>(at * 8);
            split_four<planes>(x, scale, reinterpret_cast<__half*>(high),
                               reinterpret_cast<__half*>(high + plane_bytes));
            observe(x);
        });
    }
};

// `raws` stages of floats and `stages` of planes, which `readers` warpgroups multiply; each of the `tiles` of a stage
// has its own scale. `copies`: one thread of the splitting warpgroup also copies into the stages of planes.
template <int raws, int raw_bytes, int stages, int stage_bytes, int tiles, int readers, bool copies>
struct SplitRing {
    static_assert(raw_bytes % 128 == 0 && stage_bytes % 1024 == 0, "as copies and the swizzle want them");
    static constexpr int barriers = stages * stage_bytes + raws * raw_bytes;
    static constexpr int magnitudes_offset = barriers + 8 * raws + 16 * stages;
    static constexpr int powers = magnitudes_offset + 32 * tiles, bytes = powers + 4 * tiles * stages;
    unsigned char* const shared;
    unsigned completed_steps = 0;  // steps that this reader has completed

    __device__ __forceinline__ explicit SplitRing(unsigned char* shared_) : shared(shared_) {}
    __device__ __forceinline__ unsigned raw_full(int raw) const { return shared_address(shared) + barriers + 8 * raw; }
    __device__ __forceinline__ unsigned full(int stage) const { return raw_full(raws + stage); }
    __device__ __forceinline__ unsigned empty(int stage) const { return raw_full(raws + stages + stage); }
    __device__ __forceinline__ float* power(int stage) const {
        return reinterpret_cast<float*>(shared + powers) + stage * tiles;
    }
    // Call in one thread, before the block's threads synchronise.
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < raws; ++i) barrier_init(raw_full(i), 1);
        for (int i = 0; i < stages; ++i) barrier_init(full(i), copies ? 5 : 4), barrier_init(empty(i), 4 * readers);
        barrier_init_fence();
    }

    // The splitting warpgroup calls this. fetch(address, barrier), called by one thread for each step, issues copies of
    // raw_bytes; largest_magnitude(floats, magnitudes) returns this thread's largest magnitude of each tile;
    // split(floats, stage, barrier, exponents) writes the planes. The largest magnitudes of the next step are computed
    // while this step is split, so one barrier per step is enough.
    template <class Fetch, class LargestMagnitude, class Split>
    __device__ __forceinline__ void produce(int steps, const Fetch& fetch, const LargestMagnitude& largest_magnitude,
                                            const Split& split) const {
        const int thread = threadIdx.x % 128;
        unsigned* const magnitudes = reinterpret_cast<unsigned*>(shared + magnitudes_offset);
        const auto floats = [&](int step) { return shared + stages * stage_bytes + step % raws * raw_bytes; };
        const auto start = [&](int step) {
            if (thread > 0 || step >= steps) return;
            arrive_expect(raw_full(step % raws), raw_bytes);
            fetch(shared_address(floats(step)), raw_full(step % raws));
        };
        const auto publish = [&](int step, unsigned (&magnitude)[tiles]) {
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                magnitude[i] = largest_of_warp(magnitude[i]);
                if (thread % 32 == 0) magnitudes[(step % 2 * 4 + thread / 32) * tiles + i] = magnitude[i];
            }
        };
        if (steps == 0) return;
        for (int step = 0; step < raws; ++step) start(step);
        unsigned magnitude[tiles] = {};
        wait_for(raw_full(0), 0);
        largest_magnitude(floats(0), magnitude);
        publish(0, magnitude);
        named_barrier_sync(1, 128);
        for (int step = 0; step < steps; ++step) {
            const int stage = step % stages;
            int exponents[tiles];
#pragma unroll
            for (int i = 0; i < tiles; ++i) {
                unsigned all = 0;
                for (int warp = 0; warp < 4; ++warp) all = max(all, magnitudes[(step % 2 * 4 + warp) * tiles + i]);
                exponents[i] = exponent_for(all);
            }
            wait_for(empty(stage), step / stages % 2 ^ 1);
            const bool more = step + 1 < steps;
            if (more) {
                wait_for(raw_full((step + 1) % raws), (step + 1) / raws % 2);
                largest_magnitude(floats(step + 1), magnitude);
            }
            split(floats(step), shared + stage * stage_bytes, full(stage), exponents);
            if (thread == 0)
                for (int i = 0; i < tiles; ++i) power(stage)[i] = power_of_two(-exponents[i]);
            fence_async();
            __syncwarp();
            if (thread % 32 == 0) arrive(full(stage));
            if (more) publish(step + 1, magnitude);
            named_barrier_sync(1, 128);  // all threads have read the floats of this step
            start(step + raws);
        }
    }

    // A reader calls this: multiply(stage) issues wgmma; add(powers) gets the factors that remove the scales. Other
    // warpgroups multiply while this one adds.
    template <class Multiply, class Add>
    __device__ __forceinline__ void drain(int steps, const Multiply& multiply, const Add& add) {
        for (int step = 0; step < steps; ++step, ++completed_steps) {
            const int stage = completed_steps % stages;
            wait_for(full(stage), completed_steps / stages % 2);
            float inverse_scale[tiles];
#pragma unroll
            for (int i = 0; i < tiles; ++i) inverse_scale[i] = power(stage)[i];
            wgmma_fence();
            multiply(shared_address(shared) + stage * stage_bytes);
            wgmma_commit();
            wgmma_wait<0>();
            __syncwarp();  // all lanes have read the powers
            if (threadIdx.x % 32 == 0) arrive(empty(stage));
            add(inverse_scale);
        }
    }
};

}  // namespace opbench
