// Bilinear upsampling by an integer factor: the two pixels between which each output is.
#pragma once

namespace opbench {

// Output `phase` of a pixel is at distance (2 * phase + 1 - scale) / (2 * scale) from the pixel's centre: if this is
// negative, between the previous pixel and this one, otherwise between this pixel and the next one.
template <int scale>
struct Phases {
    static __device__ constexpr bool before(int phase) { return 2 * phase + 1 < scale; }
    static __device__ constexpr float weight(int phase) {  // weight of the second of the two pixels
        return (float)(2 * phase + 1 - scale + (before(phase) ? 2 * scale : 0)) / (2 * scale);
    }
};

__device__ __forceinline__ float between(float first, float second, float weight_second) {
    return first * (1 - weight_second) + second * weight_second;
}

}  // namespace opbench
