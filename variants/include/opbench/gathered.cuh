// Gather windows of few channels for wgmma. A window may begin at any address, so threads gather 64 elements of it
// at a time and write them as a row of 128 bytes, as f16 planes (hi_lo_split.cuh) or unchanged in bf16.
#pragma once
#include <opbench/hi_lo_split.cuh>

namespace opbench {

// Load elements [first, first + 64) of the window that begins at `from`, pixel (y, x) of an image h x w. They are 0 if
// `is_valid` is false or the pixel is outside of the image.
template <int channels, int filter_rows, int filter_columns, class T>
__device__ __forceinline__ void gather_window(T (&v)[64], int first, const T* from, int y, int x, int h, int w,
                                              bool is_valid) {
    constexpr int row = filter_columns * channels, all = filter_rows * row;
    unsigned columns = 0;  // the filter columns inside of the image
#pragma unroll
    for (int j = 0; j < filter_columns; ++j) columns |= (unsigned)(x + j) < (unsigned)w && is_valid ? 1u << j : 0u;
#pragma unroll
    for (int e = 0; e < 64; ++e) {
        const int element = first + e, i = element / row, rest = element % row;
        const unsigned inside = element < all && (unsigned)(y + i) < (unsigned)h ? columns : 0;
        v[e] = inside >> rest / channels & 1 ? from[i * w * channels + rest] : T(0);
    }
}
template <class T, int count>
__device__ __forceinline__ unsigned largest_of(const T (&x)[count]) {
    unsigned magnitude = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) magnitude = max(magnitude, __float_as_uint(fabsf(widen(x[i]))));
    return magnitude;
}
// Write eight scaled elements as 16 bytes of each plane.
template <int planes>
__device__ __forceinline__ void write_eight(const float* x, float scale, unsigned char* to, int plane_bytes) {
    union {
        __half2 pairs[4];
        uint4 eight;
    } high, low;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float a = x[i * 2] * scale, b = x[i * 2 + 1] * scale;
        high.pairs[i] = __floats2half2_rn(a, b);
        low.pairs[i] = __floats2half2_rn(a - __low2float(high.pairs[i]), b - __high2float(high.pairs[i]));
    }
    *reinterpret_cast<uint4*>(to) = high.eight;
    if constexpr (planes == 2) *reinterpret_cast<uint4*>(to + plane_bytes) = low.eight;
}
template <int planes>
__device__ __forceinline__ void write_eight(const unsigned short* x, float, unsigned char* to, int) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}
// Write row `line` of an operand from its 64 elements.
template <int planes, class T>
__device__ __forceinline__ void write_row(const T (&v)[64], float scale, unsigned char* to, int line, int plane_bytes) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        write_eight<planes>(v + i * 8, scale, to + swizzled<128>(line * 128 + i * 16), plane_bytes);
}

}  // namespace opbench
