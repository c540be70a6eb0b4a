// Pooling of a volume: a thread has several outputs along the depth and along a row, whose windows share elements.
// The compiler knows all sizes.
#pragma once
#include <opbench/vectors.cuh>

namespace opbench {

// One axis of the volume: `window` elements, `dilation` apart, from output * stride - padding on.
template <int size_, int window_, int stride_, int padding_, int dilation_>
struct PooledAxis {
    static constexpr int size = size_, window = window_, stride = stride_, padding = padding_, dilation = dilation_;
    static constexpr int reach = (window - 1) * dilation + 1;
    // Return the number of elements from the first to the last of `count` neighbouring windows.
    static constexpr int span(int count) { return (count - 1) * stride + reach; }
    // Return whether element `at`, counted from the first of these elements, belongs to window `which`.
    __device__ __forceinline__ static constexpr bool contains(int which, int at) {
        return at >= which * stride && at < which * stride + reach && (at - which * stride) % dilation == 0;
    }
};

// Compute result[l][g] by combining the window of output (layer + l, row, column + g), starting from `identity`;
// elements outside of the volume count as `identity`. `column` is a multiple of `columns`; volume
// [depth][height][width] is aligned to 16 bytes if its rows are.
template <class Depth, class Height, class Width, int layers, int columns, class T, class Combine>
__device__ __forceinline__ void pool_windows(const T* volume, int layer, int row, int column, float identity,
                                             float (&result)[layers][columns], const Combine& combine) {
    constexpr int width = widest_vector(16 / sizeof(T), Width::size, columns * Width::stride);
    // extra elements before the first needed one, so that vectors are aligned
    constexpr int shift = (width - Width::padding % width) % width;
    constexpr int vectors = (shift + Width::span(columns) + width - 1) / width;
    const int front = layer * Depth::stride - Depth::padding, top = row * Height::stride - Height::padding;
    const int left = column * Width::stride - Width::padding - shift;  // a multiple of `width`
#pragma unroll
    for (int l = 0; l < layers; ++l)
#pragma unroll
        for (int g = 0; g < columns; ++g) result[l][g] = identity;
#pragma unroll
    for (int a = 0; a < Depth::span(layers); ++a) {
        bool needed = false;
#pragma unroll
        for (int l = 0; l < layers; ++l) needed = needed || Depth::contains(l, a);
        if (!needed || (unsigned)(front + a) >= (unsigned)Depth::size) continue;
        float part[columns];  // of this layer, for each output's window
#pragma unroll
        for (int g = 0; g < columns; ++g) part[g] = identity;
#pragma unroll
        for (int r = 0; r < Height::reach; r += Height::dilation) {
            const T* const line = volume + ((ptrdiff_t)(front + a) * Height::size + top + r) * Width::size + left;
            const bool inside = (unsigned)(top + r) < (unsigned)Height::size;
            Vector<T, width> v[vectors];
#pragma unroll
            for (int k = 0; k < vectors; ++k) {
                // A vector is inside the row or outside, never across its end.
                if (inside && (unsigned)(left + k * width) < (unsigned)Width::size)
                    v[k] = *reinterpret_cast<const Vector<T, width>*>(line + k * width);
                else
#pragma unroll
                    for (int lane = 0; lane < width; ++lane) v[k].lane(lane) = (T)identity;
            }
#pragma unroll
            for (int g = 0; g < columns; ++g)
#pragma unroll
                for (int s = 0; s < Width::window; ++s) {
                    const int at = shift + g * Width::stride + s * Width::dilation;
                    part[g] = combine(part[g], (float)v[at / width].lane(at % width));
                }
        }
#pragma unroll
        for (int l = 0; l < layers; ++l)
            if (Depth::contains(l, a))
#pragma unroll
                for (int g = 0; g < columns; ++g) result[l][g] = combine(result[l][g], part[g]);
    }
}

}  // namespace opbench
