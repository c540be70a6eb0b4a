// The gradient of a strided convolution. Pixels whose row and column have the same residues modulo the stride form a
// phase, and the gradient of each phase is a convolution of dout at stride 1.
#pragma once
#include <opbench/image_rows.cuh>

namespace opbench {

// The rows, or the columns, of the image that have one residue modulo the stride.
struct Residue {
    int taps, pixels, first, origin;  // filter positions; pixels; first pixel; row of dout at its first position

    __device__ __forceinline__ Residue(int residue, int r, int h, int stride, int padding)
        : taps((r - residue + stride - 1) / stride), first(((residue - padding) % stride + stride) % stride) {
        pixels = first < h ? (h - first + stride - 1) / stride : 0;
        if (taps < 0) taps = 0;
        origin = (first + padding - residue) / stride - (taps - 1);
    }
};

// The pixels of one phase, and the filter over dout that gives their gradient.
struct Phase {
    Residue down, across;
    int n, c, h, w, r, s;  // dout and the filter, as Image has them
    int height, width, stride;

    __device__ __forceinline__ Phase(const Residue& down, const Residue& across, int n, int k, int p, int q, int height,
                                     int width, int stride)
        : down(down), across(across), n(n), c(k), h(p), w(q), r(across.taps ? down.taps : 0), s(max(across.taps, 1)),
          height(height), width(width), stride(stride) {}
    __device__ __forceinline__ int pixels() const { return n * down.pixels * across.pixels; }
    __device__ __forceinline__ int depth() const { return r * s * c; }
    __device__ __forceinline__ Window window(int m) const {
        if (m >= pixels()) return {0, ~0u};
        const int plane = down.pixels * across.pixels, pixel = m % plane;
        const int y = pixel / across.pixels + down.origin, x = pixel % across.pixels + across.origin;
        const int first_i = min(max(-y, 0), r), last_i = max(min(h - y, r), first_i);
        const int first_j = min(max(-x, 0), s), last_j = max(min(w - x, s), first_j);
        const unsigned inside = ((1u << last_i) - (1u << first_i)) | ((1u << last_j) - (1u << first_j)) << 16;
        return {(m / plane * h * w + y * w + x) * c, ~inside};
    }
    // The pixel of the image that is the m-th of the phase.
    __device__ __forceinline__ int operator()(int m) const {
        const int plane = down.pixels * across.pixels, pixel = m % plane;
        const int y = pixel / across.pixels * stride + down.first, x = pixel % across.pixels * stride + across.first;
        return (m / plane * height + y) * width + x;
    }
};

}  // namespace opbench
