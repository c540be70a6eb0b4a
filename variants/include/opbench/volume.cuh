// Convolutions of volumes, forward and transposed: which voxels and which filter elements contribute to an output.
#pragma once

namespace opbench {

// The sizes of a convolution, as the argument of a kernel.
struct VolumeSizes {
    int n, c, d, h, w, k, t, r, s;
    int stride_d, stride_h, stride_w, padding_d, padding_h, padding_w, dilation_d, dilation_h, dilation_w;
    int group_channels, group_filters;  // channels of an input and of an output group
    int z, p, q;                        // depth, height and width of the output
};

// One axis: with tap j, output u uses voxel start + u * stride + j * step, if that voxel is inside (from 0 to `size` -
// 1).
struct Axis {
    int size, outputs, taps, start, stride, step;
    int tap, next_tap;    // the filter element of tap 0, and the distance to the next one
    int first, distance;  // the coordinate of output 0, and the distance to the next one

    __device__ __forceinline__ int voxel(int output, int number) const {
        return start + output * stride + number * step;
    }
    __device__ __forceinline__ bool inside(int voxel) const { return (unsigned)voxel < (unsigned)size; }
};

__device__ __forceinline__ Axis forward_axis(int size, int outputs, int taps, int stride, int padding, int dilation) {
    return {size, outputs, taps, -padding, stride, dilation, 0, 1, 0, 1};
}

__host__ __device__ constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// The outputs with one remainder modulo the stride of a transposed convolution. The same taps contribute to all of
// them, so this is a convolution with stride 1 by every next_tap-th element of the filter.
template <int stride, int dilation>
__device__ __forceinline__ Axis transposed_axis(int size, int outputs, int taps, int padding, int residue) {
    constexpr int next_tap = stride / common_divisor(stride, dilation),
                  step = dilation / common_divisor(stride, dilation);
    int tap = taps;  // no tap contributes, unless one of the first next_tap taps does
#pragma unroll
    for (int j = next_tap - 1; j >= 0; --j)
        if ((residue + padding - j * dilation) % stride == 0) tap = j;
    const int contributing_taps = tap < taps ? (taps - tap + next_tap - 1) / next_tap : 0;
    return {size,
            outputs > residue ? (outputs - residue - 1) / stride + 1 : 0,
            contributing_taps,
            (residue + padding - tap * dilation) / stride,
            1,
            -step,
            tap,
            next_tap,
            residue,
            stride};
}

// An output of a volume: its image, and its index along each axis.
struct Output { int image, z, y, x; };

struct Volume {
    Axis d, h, w;
    int n;

    __device__ __forceinline__ int outputs() const { return n * d.outputs * h.outputs * w.outputs; }
    __device__ __forceinline__ int taps() const { return d.taps * h.taps * w.taps; }
    __device__ __forceinline__ Output output(int m) const {
        const int row = m / w.outputs, plane = row / h.outputs;
        return {plane / d.outputs, plane % d.outputs, row % h.outputs, m % w.outputs};
    }
    // Return the index of an output among all voxels of the written volumes, which have z x p x q voxels.
    __device__ __forceinline__ int place(const Output& at, int z, int p, int q) const {
        const int plane = at.image * z + d.first + at.z * d.distance;
        return (plane * p + h.first + at.y * h.distance) * q + w.first + at.x * w.distance;
    }
    // Return the index of a tap in the filter.
    __device__ __forceinline__ int element(int a, int i, int j, int r, int s) const {
        return ((d.tap + a * d.next_tap) * r + h.tap + i * h.next_tap) * s + w.tap + j * w.next_tap;
    }
};

__device__ __forceinline__ Volume forward_volume(const VolumeSizes& size) {
    return {forward_axis(size.d, size.z, size.t, size.stride_d, size.padding_d, size.dilation_d),
            forward_axis(size.h, size.p, size.r, size.stride_h, size.padding_h, size.dilation_h),
            forward_axis(size.w, size.q, size.s, size.stride_w, size.padding_w, size.dilation_w), size.n};
}

// Return the outputs of remainder class `residue` of a transposed convolution; there are as many classes as the product
// of the strides.
template <int stride_d, int stride_h, int stride_w, int dilation_d, int dilation_h, int dilation_w>
__device__ __forceinline__ Volume transposed_volume(const VolumeSizes& size, int residue) {
    const int front = residue / (stride_h * stride_w), top = residue / stride_w % stride_h, left = residue % stride_w;
    return {transposed_axis<stride_d, dilation_d>(size.d, size.z, size.t, size.padding_d, front),
            transposed_axis<stride_h, dilation_h>(size.h, size.p, size.r, size.padding_h, top),
            transposed_axis<stride_w, dilation_w>(size.w, size.q, size.s, size.padding_w, left), size.n};
}

}  // namespace opbench
