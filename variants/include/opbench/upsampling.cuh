// Bilinear upsampling by a whole number: between which pixels each output lies.
#pragma once

namespace opbench {

// Output `phase` of a pixel lies (2 * phase + 1 - scale) / (2 * scale) beside it: on the side of the pixel before, or
// after.
template <int scale>
struct Phases {
    static __device__ constexpr bool before(int phase) { return 2 * phase + 1 < scale; }
    static __device__ constexpr float weight(int phase) {  // of the later of the two pixels
        return (float)(2 * phase + 1 - scale + (before(phase) ? 2 * scale : 0)) / (2 * scale);
    }
};

__device__ __forceinline__ float between(float first, float second, float weight_second) {
    return first * (1 - weight_second) + second * weight_second;
}

}  // namespace opbench
