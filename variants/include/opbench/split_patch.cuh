// As patch.cuh, but without a separate pass that splits or rounds the image. TMA loads patches as floats, and three
// warps of the copying warpgroup write their f16 planes (hi_lo_split.cuh), while the other warpgroups multiply the
// previous patch. Each patch of 64 channels has its own scale, a power of two, so the image's largest magnitude need
// not be known. With one plane, all channels share one sum: then the scale can only decrease from patch to patch, and
// the sum is rescaled.
#pragma once
#include <opbench/patch.cuh>
#include <opbench/hi_lo_split.cuh>

namespace opbench {

template <int height, int filter_rows, int filter_columns, int ring, bool by_m, int planes = 2>
struct SplitPatch : Patch<Format::f16, height, filter_rows, filter_columns, 2, 0, ring, by_m, planes> {
    typedef Patch<Format::f16, height, filter_rows, filter_columns, 2, 0, ring, by_m, planes> Base;
    using Base::count, Base::slices, Base::patch, Base::full, Base::empty, Base::order_barriers, Base::filters;
    using Base::filter_full, Base::filter_empty;
    static constexpr int quads = Base::patch_bytes / 8, raw_bytes = quads * 16, threads = 96, warps = threads / 32;
    static constexpr int batch = 6;  // groups of four floats that a thread keeps in registers
    static constexpr int copier_registers = 56, consumer_registers = 224;
    static constexpr int bytes = Base::bytes + raw_bytes, control = bytes + Base::barrier_bytes, all = control + 64;
    unsigned char* shared;

    // For images of p x q pixels and k filters over c channels; needs `all` bytes of shared memory.
    __device__ __forceinline__ SplitPatch(unsigned char* shared_, int images, int p, int q, int k, int c)
        : Base(shared_address(shared_), shared_address(shared_) + bytes, images, p, q, k, c), shared(shared_) {}
    __device__ __forceinline__ unsigned raw_full() const { return shared_address(shared) + control; }
    __device__ __forceinline__ float* powers() const { return reinterpret_cast<float*>(shared + control + 8); }
    __device__ __forceinline__ unsigned* magnitudes() const {
        return reinterpret_cast<unsigned*>(shared + control + 16);
    }
    __device__ __forceinline__ void init() const {
        barrier_init(raw_full(), 1);
        for (int i = 0; i < 2; ++i) barrier_init(order_barriers + 8 * i, 4), barrier_init(full + 8 * i, 1);
        for (int i = 0; i < 2; ++i) barrier_init(empty + 8 * i, 4);  // one lane of every warp arrives
        for (int i = 0; i < ring; ++i) barrier_init(filter_full + 8 * i, 1), barrier_init(filter_empty + 8 * i, 1);
        barrier_init_fence();
    }

    // Warps 1 to 3 call this: fetch(address, barrier, slice, place) copies raw_bytes, pixels of 64 floats, without a
    // swizzle.
    template <class Fetch>
    __device__ __forceinline__ void split_patches(const Fetch& fetch) const {
        const int thread = (int)threadIdx.x - 32;
        const float4* const raw = reinterpret_cast<const float4*>(shared + Base::bytes);
        const auto start = [&](int index, int slice) {
            if (thread > 0 || index >= count) return;
            arrive_expect(raw_full(), raw_bytes);
            fetch(shared_address(shared) + Base::bytes, raw_full(), slice, this->place(index));
        };
        start(blockIdx.x, 0);
        // Call visit(four floats, their index). All loads come before the stores, because the compiler must assume that
        // they may alias.
        const auto for_each_float4 = [&](const auto& visit) {
#pragma unroll 1
            for (int first = thread; first < quads; first += batch * threads) {
                float4 x[batch];
#pragma unroll
                for (int i = 0; i < batch; ++i)
                    x[i] = first + i * threads < quads ? raw[first + i * threads] : broadcast_float4(0.0f);
#pragma unroll
                for (int i = 0; i < batch; ++i)
                    if (first + i * threads < quads) visit(x[i], first + i * threads);
            }
        };
        unsigned number = 0;
        int e = 0;
        for (int index = blockIdx.x; index < count; index += gridDim.x)
            for (int slice = 0; slice < slices; ++slice, ++number) {
                const unsigned stage = number % 2;
                wait_for(raw_full(), number % 2);
                unsigned magnitude = 0;
                for_each_float4([&](const float4& x, int) { magnitude = max(magnitude, largest(x)); });
                magnitude = largest_of_warp(magnitude);
                if (thread % 32 == 0) magnitudes()[thread / 32] = magnitude;
                named_barrier_sync(1, threads);
                for (int warp = 0; warp < warps; ++warp) magnitude = max(magnitude, magnitudes()[warp]);
                const int exponent = planes == 1 && magnitude == 0 ? 126 : exponent_for(magnitude);
                e = planes == 1 && slice > 0 ? min(e, exponent) : exponent;
                wait_for(empty + 8 * stage, number / 2 % 2 ^ 1);
                unsigned char* const to = shared + (patch - filters) + stage * Base::stage_stride;
                const float4 scale = broadcast_float4(power_of_two(e));
                for_each_float4([&](const float4& x, int at) {
                    unsigned char* const high = to + swizzled<128>(at * 8);
                    split_four<planes>(x, scale, reinterpret_cast<__half*>(high),
                                       reinterpret_cast<__half*>(high + Base::patch_stride));
                });
                if (thread == 0) powers()[stage] = power_of_two(-e);
                fence_async();
                named_barrier_sync(1, threads);  // also: all floats have been read
                if (thread == 0) arrive(full + 8 * stage);
                start(slice + 1 < slices ? index : index + (int)gridDim.x, slice + 1 < slices ? slice + 1 : 0);
            }
    }

    // As Patch::work, but the products with low parts have a separate sum per patch, whose scale is removed when it is
    // added.
    template <class Finish>
    __device__ __forceinline__ void work(const Finish& finish) const {
        const int warpgroup = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
        const bool is_leader = threadIdx.x % 128 == 0;
        typename Base::Sums sum = {}, big, small;  // big and small: with two planes
        float inverse_scale = 1.0f;
        for (int number = warpgroup; (int)(blockIdx.x + number * gridDim.x) < count; number += 2) {
            wait_for(order_barriers + 8 * warpgroup, number / 2 % 2 ^ 1 ^ warpgroup);
            for (int slice = 0; slice < slices; ++slice) {
                const unsigned at = number * slices + slice, stage = at % 2;
                const unsigned patch_address = patch + stage * Base::stage_stride;
                wait_for(full + 8 * stage, at / 2 % 2);
                const float previous_inverse_scale = inverse_scale;
                inverse_scale = powers()[stage];
                if constexpr (planes == 1) {
                    const float change = previous_inverse_scale / inverse_scale;  // a quotient of powers of two
#pragma unroll
                    for (int i = 0; i < Base::pixels / 2; ++i) sum[i] *= change;
                }
                unsigned filter = 0;
#pragma unroll 1
                for (int position = 0; position < Base::positions; ++position) {
                    const unsigned step = at * Base::positions + position, before = filter;
                    filter = step % ring;
                    wait_for(filter_full + 8 * filter, step / ring % 2);
                    wgmma_fence();
                    const unsigned a = filters + filter * Base::filter_bytes;
                    if constexpr (planes == 1) {
                        Base::multiply(sum, a, patch_address, position, slice + position > 0);
                    } else {
                        Base::multiply(big, a, patch_address, position, 0);
                        wgmma_commit();
                        Base::multiply(small, a + Base::filter_plane, patch_address, position, position > 0);
                        Base::multiply(small, a, patch_address + Base::patch_stride, position, 1);
                    }
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (is_leader && position > 0) arrive(filter_empty + 8 * before);
                    if constexpr (planes == 2) {  // while the small products run
#pragma unroll
                        for (int i = 0; i < Base::pixels / 2; ++i)
                            sum[i] = slice + position > 0 ? sum[i] + big[i] * inverse_scale : big[i] * inverse_scale;
                    }
                }
                if (lane == 0 && slice == slices - 1) arrive(order_barriers + 8 * (warpgroup ^ 1));
                wgmma_wait<0>();
                __syncwarp();  // all lanes have read the scale
                if (lane == 0) arrive(empty + 8 * stage);
                if (is_leader) arrive(filter_empty + 8 * filter);
                if constexpr (planes == 2) {
#pragma unroll
                    for (int i = 0; i < Base::pixels / 2; ++i) sum[i] += small[i] * inverse_scale;
                }
            }
            if constexpr (planes == 1) {
#pragma unroll
                for (int i = 0; i < Base::pixels / 2; ++i) sum[i] *= inverse_scale;
            }
            finish(sum, this->place(blockIdx.x + number * gridDim.x));
        }
    }
};

}  // namespace opbench
