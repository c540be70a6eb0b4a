// Load rows of a convolution of volumes [n][d][h][w][c] as a matrix, for tensor cores: a row is an output, its depth
// tap x channel of a group. Rows of filters [k][all taps][channels] are loaded at the same time. As in image_rows.cuh,
// each thread fills one chunk of every fill_rows-th row of a stage.
#pragma once

#include <opbench/tile.cuh>
#include <opbench/volume.cuh>

namespace opbench {

constexpr int most_volume_taps = 128;

struct __align__(8) VolumeWindow {
    int origin;        // position of an output's tap 0 in the image, in elements; may be outside
    unsigned outside;  // bits a, 10 + i and 20 + j: taps a, i and j of the three axes are outside; bit 31: always 1
};

struct __align__(16) VolumeTap {
    int image, filter;  // distance from tap 0 in the image, and index in a filter, in elements
    unsigned tap_mask;  // the bits of VolumeWindow::outside that must be 0; bit 31: there is no such tap
    int unused;
};

// The tables of a block of bm outputs, in shared memory: they save divisions and registers in the main loop.
template <int bm>
struct VolumeTables {
    VolumeWindow windows[bm];
    VolumeTap taps[most_volume_taps];

    // m0: the block's first output. All threads of the block take part.
    __device__ __forceinline__ void fill(const VolumeSizes& size, const Volume& volume, int channels, int m0) {
        for (int at = threadIdx.x; at < bm; at += blockDim.x) {
            VolumeWindow window = {0, ~0u};
            if (m0 + at < volume.outputs()) {
                const Output output = volume.output(m0 + at);
                const int z = volume.d.voxel(output.z, 0), y = volume.h.voxel(output.y, 0);
                const int x = volume.w.voxel(output.x, 0);
                window.origin = (((output.image * size.d + z) * size.h + y) * size.w + x) * size.c;
                unsigned inside = 0;
                for (int a = 0; a < volume.d.taps; ++a) inside |= (unsigned)volume.d.inside(z + a * volume.d.step) << a;
                for (int i = 0; i < volume.h.taps; ++i)
                    inside |= (unsigned)volume.h.inside(y + i * volume.h.step) << (10 + i);
                for (int j = 0; j < volume.w.taps; ++j)
                    inside |= (unsigned)volume.w.inside(x + j * volume.w.step) << (20 + j);
                window.outside = ~inside;
            }
            windows[at] = window;
        }
        for (int tap = threadIdx.x; tap < volume.taps(); tap += blockDim.x) {
            const int j = tap % volume.w.taps, i = tap / volume.w.taps % volume.h.taps;
            const int a = tap / volume.w.taps / volume.h.taps;
            const int row = a * volume.d.step * size.h + i * volume.h.step;
            taps[tap] = {(row * size.w + j * volume.w.step) * size.c,
                         volume.element(a, i, j, size.r, size.s) * channels, 1u << a | 0x400u << i | 0x100000u << j, 0};
        }
        __syncthreads();
    }
};

// Fill a stage of bm outputs, whose windows come from the tables, and bn filters. `aligned`: channels of a group are
// whole chunks.
template <class Block, bool aligned>
struct VolumeAndFilters {
    typedef typename Block::T T;
    static constexpr bool pads_with_zeros = false;
    static constexpr int vec = Block::vec, fill_rows = Block::fill_rows;
    static constexpr int a_loads = Block::bm / fill_rows, b_loads = Block::bn / fill_rows;

    const T *image, *weight;
    const VolumeTables<Block::bm>& tables;
    StageWriter<Block> to;
    int tap, channel, count, channels;  // of this thread's chunk in the depth; the numbers of taps and channels
    int depth, filters_left;            // elements of a filter; filters that exist from this thread's first one on

    // image: the group's first channel; weight: the block's first filter, of `depth` elements; `filters` exist.
    __device__ __forceinline__ VolumeAndFilters(unsigned char* memory, const T* image, const T* weight,
                                                const VolumeTables<Block::bm>& tables, int count, int channels,
                                                int depth, int filters)
        : image(image), weight(weight), tables(tables), to(memory), tap(to.chunk * vec / channels),
          channel(to.chunk * vec % channels), count(count), channels(channels), depth(depth),
          filters_left(filters - to.row) {
        this->weight += to.row * depth;
    }

    // Copy the next step into the next stage; stages are used cyclically.
    __device__ __forceinline__ void operator()(int) {
        if constexpr (aligned)
            copy_chunks();
        else
            copy_elements();
        channel += Block::bk;
        while (channel >= channels) channel -= channels, ++tap;
        to.next_stage();
    }
    __device__ __forceinline__ VolumeTap tap_at(int tap) const {
        return tap < count ? tables.taps[tap] : VolumeTap{0, 0, 1u << 31, 0};
    }

    __device__ __forceinline__ void copy_chunks() const {
        const VolumeTap at = tap_at(tap);
        const int shift = at.image + channel, from = at.filter + channel;
        // Load several windows first: otherwise the compiler would make each load wait for the previous copy. For more
        // than four, there are not enough registers.
        constexpr int at_once = a_loads < 4 ? a_loads : 4;
#pragma unroll
        for (int first = 0; first < a_loads; first += at_once) {
            VolumeWindow loaded[at_once];
#pragma unroll
            for (int l = 0; l < at_once; ++l) loaded[l] = tables.windows[to.row + (first + l) * fill_rows];
#pragma unroll
            for (int l = 0; l < at_once; ++l)
                copy_chunk(to[first + l], image + (loaded[l].origin + shift), loaded[l].outside & at.tap_mask ? 0 : 16);
        }
#pragma unroll
        for (int l = 0; l < b_loads; ++l)
            copy_chunk(to[a_loads + l], weight + (from + l * fill_rows * depth),
                       at.tap_mask >> 31 == 0 && l * fill_rows < filters_left ? 16 : 0);
    }

    // If channels are not whole chunks, a chunk spans taps, so its elements are copied one by one.
    __device__ __forceinline__ void copy_elements() const {
        int at = tap, element = channel;
#pragma unroll 1
        for (int e = 0; e < vec; ++e) {
            const VolumeTap now = tap_at(at);
            const int shift = now.image + element, from = now.filter + element;
#pragma unroll
            for (int l = 0; l < a_loads; ++l) {
                const VolumeWindow window = tables.windows[to.row + l * fill_rows];
                reinterpret_cast<T*>(to[l])[e] = window.outside & now.tap_mask ? T(0.0f) : image[window.origin + shift];
            }
#pragma unroll
            for (int l = 0; l < b_loads; ++l)
                reinterpret_cast<T*>(to[a_loads + l])[e] = now.tap_mask >> 31 == 0 && l * fill_rows < filters_left
                                                               ? weight[from + l * fill_rows * depth]
                                                               : T(0.0f);
            if (++element == channels) element = 0, ++at;
        }
    }
};

// The rows of a group in the output: a voxel has the channels of all groups.
struct GroupRows {
    int groups;
    __device__ __forceinline__ int operator()(int row) const { return row * groups; }
};

}  // namespace opbench
