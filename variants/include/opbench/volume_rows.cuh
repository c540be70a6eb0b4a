// Load rows of a convolution of volumes [n][d][h][w][c] as a matrix, for tensor cores: a row is an output, its depth
// tap x channel of a group. Rows of filters [k][all taps][channels] are loaded at the same time. As in image_rows.cuh,
// each thread fills one chunk of every fill_rows-th row of a stage.
#pragma once

#include <opbench/tile.cuh>
#include <opbench/volume.cuh>

namespace opbench {

struct __align__(8) VolumeWindow {
    int origin;        // where tap 0 of an output lies in the image, in elements; may be outside
    unsigned outside;  // bits a, 10 + i and 20 + j: taps a, i and j of the three axes are outside; bit 31: always 1
};

// The position of a thread's chunk in the depth: taps of the three axes and channel as one index.
struct VolumeTaps {
    int a, i, j, channel, t, r, s, c;          // taps and channel, and the extent of each
    int next_a, next_i, next_j, next_channel;  // the increment of a step, before carries

    __device__ __forceinline__ VolumeTaps(int start, int step, const Volume& volume, int channels)
        : t(volume.d.taps), r(volume.h.taps), s(volume.w.taps), c(channels) {
        // Without taps there is no step, but none of them may be a divisor.
        const int rows = r > 0 ? r : 1, columns = s > 0 ? s : 1;
        channel = start % c, j = start / c % columns, i = start / c / columns % rows, a = start / c / columns / rows;
        next_channel = step % c, next_j = step / c % columns, next_i = step / c / columns % rows;
        next_a = step / c / columns / rows;
    }
    // The bits of VolumeWindow::outside that must be 0; bit 31 excludes all positions after the depth.
    __device__ __forceinline__ unsigned needed() const {
        return a < t ? 1u << a | 0x400u << i | 0x100000u << j : 1u << 31;
    }
    __device__ __forceinline__ void step() {
        channel += next_channel, j += next_j, i += next_i, a += next_a;
        if (channel >= c) channel -= c, ++j;
        if (j >= s) j -= s, ++i;
        if (i >= r) i -= r, ++a;
    }
    __device__ __forceinline__ void step_one() {
        if (++channel == c) channel = 0, ++j;
        if (j == s) j = 0, ++i;
        if (i == r) i = 0, ++a;
    }
};

// Fill a stage of bm outputs, whose windows come from a table, and bn filters. `aligned`: channels of a group are whole
// chunks.
template <class Block, bool aligned>
struct VolumeAndFilters {
    typedef typename Block::T T;
    static constexpr bool endless = false;
    static constexpr int vec = Block::vec, fill_rows = Block::fill_rows;
    static constexpr int a_loads = Block::bm / fill_rows, b_loads = Block::bn / fill_rows;

    const T *image, *weight;
    const VolumeWindow* windows;  // of the block's bm outputs
    StageWriter<Block> to;
    VolumeTaps taps;
    int plane, row, column;                                            // from one tap to the next in the image
    int weight_start, weight_plane, weight_row, weight_column, depth;  // and in the filter, which has `depth` elements
    int filters_left;

    // image: the group's first channel; weight: the block's first filter, of which `filters` exist; m0: the block's
    // first output. Writes the block's table to `found`.
    __device__ __forceinline__ VolumeAndFilters(unsigned char* memory, const T* image, const T* weight,
                                                VolumeWindow (&found)[Block::bm], const VolumeSizes& size,
                                                const Volume& volume, int channels, int m0, int filters)
        : image(image), weight(weight), windows(found), to(memory), taps(to.chunk * vec, Block::bk, volume, channels),
          plane(volume.d.step * size.h * size.w * size.c), row(volume.h.step * size.w * size.c),
          column(volume.w.step * size.c), weight_start(volume.element(0, 0, 0, size.r, size.s) * channels),
          weight_plane(volume.d.next_tap * size.r * size.s * channels),
          weight_row(volume.h.next_tap * size.s * channels), weight_column(volume.w.next_tap * channels),
          depth(size.t * size.r * size.s * channels), filters_left(filters - to.row) {
        weight_start += to.row * depth;
        for (int at = threadIdx.x; at < Block::bm; at += blockDim.x) {
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
            found[at] = window;
        }
        __syncthreads();
    }

    // Copy the next step to the next stage; stages are used in turn.
    __device__ __forceinline__ void operator()(int) {
        if constexpr (aligned)
            copy_chunks();
        else
            copy_elements();
        taps.step();
        to.next_stage();
    }
    __device__ __forceinline__ int in_image(const VolumeTaps& at) const {
        return at.a * plane + at.i * row + at.j * column + at.channel;
    }
    __device__ __forceinline__ int in_filter(const VolumeTaps& at) const {
        return weight_start + at.a * weight_plane + at.i * weight_row + at.j * weight_column + at.channel;
    }

    __device__ __forceinline__ void copy_chunks() const {
        const int shift = in_image(taps), filter = in_filter(taps);
        const unsigned needed = taps.needed();
        VolumeWindow found[a_loads];  // load all first: the compiler would make each load wait for the copy before it
#pragma unroll
        for (int l = 0; l < a_loads; ++l) found[l] = windows[to.row + l * fill_rows];
#pragma unroll
        for (int l = 0; l < a_loads; ++l)
            copy_chunk(to[l], image + (found[l].origin + shift), found[l].outside & needed ? 0 : 16);
#pragma unroll
        for (int l = 0; l < b_loads; ++l)
            copy_chunk(to[a_loads + l], weight + (filter + l * fill_rows * depth),
                       needed >> 31 == 0 && l * fill_rows < filters_left ? 16 : 0);
    }

    // If channels are no whole chunks, a chunk spans taps, so its elements are copied one by one.
    __device__ __forceinline__ void copy_elements() const {
        VolumeTaps at = taps;
        int shift[vec], filter[vec];
        unsigned needed[vec];
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            shift[e] = in_image(at), filter[e] = in_filter(at), needed[e] = at.needed();
            at.step_one();
        }
        union __align__(16) Chunk {
            T elements[vec];
            uint4 bits;
        } chunk;
#pragma unroll 1
        for (int l = 0; l < a_loads; ++l) {
            const VolumeWindow window = windows[to.row + l * fill_rows];
#pragma unroll
            for (int e = 0; e < vec; ++e)
                chunk.elements[e] = window.outside & needed[e] ? T(0.0f) : image[window.origin + shift[e]];
            *reinterpret_cast<uint4*>(to[l]) = chunk.bits;
        }
#pragma unroll 1
        for (int l = 0; l < b_loads; ++l) {
#pragma unroll
            for (int e = 0; e < vec; ++e)
                chunk.elements[e] = needed[e] >> 31 == 0 && l * fill_rows < filters_left
                                        ? weight[filter[e] + l * fill_rows * depth]
                                        : T(0.0f);
            *reinterpret_cast<uint4*>(to[a_loads + l]) = chunk.bits;
        }
    }
};

// The rows of a group in the output: a voxel has the channels of all groups.
struct GroupRows {
    int groups;
    __device__ __forceinline__ int operator()(int row) const { return row * groups; }
};

}  // namespace opbench
