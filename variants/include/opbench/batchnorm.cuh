// The arithmetic of the gradient of batch normalisation, independent of which threads share a channel.
#pragma once

namespace opbench {

// The values that all pixels of a channel share; factor = rstd * scale.
template <bool relu>
struct ChannelGradient {
    float mean, rstd, factor, shift;

    // Return the gradient after the ReLU's mask: zero where the ReLU was inactive. `centred` is the input minus the
    // mean.
    __device__ __forceinline__ float masked_gradient(float centred, float gradient) const {
        if constexpr (relu)
            return fmaf(centred, factor, shift) > 0.0f ? gradient : 0.0f;
        else
            return gradient;
    }
};

}  // namespace opbench
