// Activations and their derivatives in float, for kernels on CUDA cores from the fourth variant of a ladder on.
// Exponentials and quotients are one instruction each; only exp itself, whose results can be large, computes its
// exponent more exactly. Small results keep their relative accuracy, because no function is computed as one minus a
// number near 1.
#pragma once

namespace opbench {

enum class Function {
    gelu,
    gelu_tanh,
    silu,
    sigmoid,
    tanh,
    leaky_relu,
    elu,
    selu,
    softplus,
    softsign,
    hardswish,
    hardsigmoid,
    hardtanh,
    exp,
    abs
};

constexpr float log2_e = 1.44269504f, selu_scale = 1.05070099f, selu_alpha = 1.67326324f;
// A sigmoid is 1 / (1 + 2^(-u)). For gelu_tanh, u is x (linear + cubic x^2).
constexpr float gelu_linear = 1.59576912f, gelu_cubic = 0.0713548163f;

// Return 2^x; 0 if the result is below the smallest normal number.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Return 1 / x; 0 if the result is below the smallest normal number.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The logistic function 1 / (1 + e) of e = 2^(-u) (`share`), and one minus it (`rest`), each accurate where it is
// small.
struct Logistic {
    float share, rest;
    __device__ __forceinline__ Logistic(float negative_u) {
        const float e = power_of_two(negative_u);
        share = reciprocal(1.0f + e);
        rest = negative_u < 0.0f ? e * share : 1.0f - share;
    }
};

// The integral of the normal distribution up to x (`share`), and its density. The tail is the density times a
// polynomial in 1 / (1 + 0.48 |x|), which was fitted by least squares to the scaled tail, with a relative error of
// 2e-7.
struct Normal {
    float share, density;
    __device__ __forceinline__ Normal(float x) {
        const float bell = power_of_two(-0.5f * log2_e * x * x);
        const float t = reciprocal(fmaf(0.48f, fabsf(x), 1.0f));
        float tail = 0.0489645600f;
        tail = fmaf(tail, t, -0.258888513f);
        tail = fmaf(tail, t, 0.537669003f);
        tail = fmaf(tail, t, -0.493538499f);
        tail = fmaf(tail, t, 0.103927337f);
        tail = fmaf(tail, t, 0.0281786919f);
        tail = fmaf(tail, t, 0.150878608f);
        tail = fmaf(tail, t, 0.191313848f);
        tail = fmaf(tail, t, 0.191495001f);
        tail *= t * bell;
        share = x > 0.0f ? 1.0f - tail : tail;
        density = 0.398942280f * bell;
    }
};

__device__ __forceinline__ float gelu_exponent(float x) {
    return x * fmaf(-gelu_cubic * log2_e, x * x, -gelu_linear * log2_e);
}

// Return x if x > 0, else e^x - 1. Near 0 that is a polynomial, because the difference would lose accuracy; its terms
// above the first are 0 for x > 0 and NaN, which the first one keeps.
__device__ __forceinline__ float exponential_unit(float x) {
    const float below = fminf(x, 0.0f);
    float near = fmaf(0.00112592184f, below, 0.00819329452f);
    near = fmaf(near, below, 0.0416320488f);
    near = fmaf(near, below, 0.166662887f);
    near = fmaf(near, below, 0.499999851f);
    near = fmaf(near * below, below, x);
    return x <= -0.5f ? power_of_two(log2_e * x) - 1.0f : near;
}

// Return log(1 + x) for x from 0 to 1, by a polynomial.
__device__ __forceinline__ float log_one_plus(float x) {
    float sum = fmaf(0.00536477333f, x, -0.0300655942f);
    sum = fmaf(sum, x, 0.0792042241f);
    sum = fmaf(sum, x, -0.137537763f);
    sum = fmaf(sum, x, 0.191536441f);
    sum = fmaf(sum, x, -0.248571604f);
    sum = fmaf(sum, x, 0.33321321f);
    sum = fmaf(sum, x, -0.499996483f);
    return fmaf(sum * x, x, x);
}

// Return f(x).
template <Function f>
__device__ __forceinline__ float activation(float x) {
    if constexpr (f == Function::gelu) return x * Normal(x).share;
    if constexpr (f == Function::gelu_tanh) return x * Logistic(gelu_exponent(x)).share;
    if constexpr (f == Function::silu) return x * Logistic(-log2_e * x).share;
    if constexpr (f == Function::sigmoid) return Logistic(-log2_e * x).share;
    if constexpr (f == Function::tanh) return tanhf(x);
    if constexpr (f == Function::leaky_relu) return x > 0.0f ? x : 0.01f * x;
    if constexpr (f == Function::elu) return exponential_unit(x);
    if constexpr (f == Function::selu) return exponential_unit(x) * (x > 0.0f ? selu_scale : selu_scale * selu_alpha);
    if constexpr (f == Function::softplus) return fmaxf(x, 0.0f) + log_one_plus(power_of_two(-log2_e * fabsf(x)));
    if constexpr (f ==
                  Function::softsign)  // with the quarters, the reciprocal of a large number is still a normal number
        return 0.25f * (x * reciprocal(fmaf(0.25f, fabsf(x), 0.25f)));
    if constexpr (f == Function::hardswish) return x * __saturatef(fmaf(x, 1.0f / 6.0f, 0.5f));
    if constexpr (f == Function::hardsigmoid)  // __saturatef makes 0 of NaN
        return x == x ? __saturatef(fmaf(x, 1.0f / 6.0f, 0.5f)) : x;
    if constexpr (f == Function::hardtanh) return fabsf(x) > 1.0f ? copysignf(1.0f, x) : x;
    if constexpr (f == Function::exp) return expf(x);
    return fabsf(x);
}

// Identify the activation in the epilogue of a product: an int, so that a bool can select ReLU.
constexpr int relu_id = 1, gelu_tanh_id = 2, hardswish_id = 3, hardsigmoid_id = 4;
template <int activation_id>
__device__ __forceinline__ float apply_activation(float sum) {
    if constexpr (activation_id == relu_id) return fmaxf(sum, 0.0f);
    if constexpr (activation_id == gelu_tanh_id) return activation<Function::gelu_tanh>(sum);
    if constexpr (activation_id == hardswish_id) return activation<Function::hardswish>(sum);
    if constexpr (activation_id == hardsigmoid_id) return activation<Function::hardsigmoid>(sum);
    return sum;
}

// The same functions, named after epilogues, for a variant that defines EPILOGUE = "epilogue".
namespace activation_of {
constexpr int none = 0, bias = 0, bias_add = 0, bias_relu = relu_id, bias_add_relu = relu_id,
              bias_gelu_tanh = gelu_tanh_id, bias_hardswish = hardswish_id, bias_hardsigmoid = hardsigmoid_id;
}

// The former names.
constexpr int relu_follows = relu_id, gelu_tanh_follows = gelu_tanh_id, hardswish_follows = hardswish_id,
              hardsigmoid_follows = hardsigmoid_id;
template <int follows>
__device__ __forceinline__ float followed(float sum) {
    return apply_activation<follows>(sum);
}
namespace follows_in = activation_of;

// Return f'(x); where two pieces meet, the derivative that PyTorch uses.
template <Function f>
__device__ __forceinline__ float slope(float x) {
    if constexpr (f == Function::gelu) {
        const Normal normal(x);
        return fmaf(x, normal.density, normal.share);
    }
    if constexpr (f == Function::gelu_tanh) {
        const Logistic logistic(gelu_exponent(x));
        // for larger |x|, share or rest is 0, and a cube could be infinite
        const float near = fminf(fmaxf(x, -1e3f), 1e3f);
        const float steepness = fmaf(3.0f * gelu_cubic, near * near, gelu_linear);
        return fmaf(near * steepness * logistic.rest, logistic.share, logistic.share);
    }
    if constexpr (f == Function::silu) {
        const Logistic logistic(-log2_e * x);
        return fmaf(x * logistic.rest, logistic.share, logistic.share);
    }
    if constexpr (f == Function::sigmoid || f == Function::tanh) {  // even functions: with |x| no exponential overflows
        constexpr float scale = f == Function::tanh ? 2.0f : 1.0f;
        const float e = power_of_two(-scale * log2_e * fabsf(x)), r = reciprocal(1.0f + e);
        return scale * scale * e * r * r;
    }
    if constexpr (f == Function::leaky_relu) return x > 0.0f ? 1.0f : 0.01f;
    if constexpr (f == Function::elu) return x > 0.0f ? 1.0f : power_of_two(log2_e * x);
    if constexpr (f == Function::selu) return selu_scale * (x > 0.0f ? 1.0f : selu_alpha * power_of_two(log2_e * x));
    if constexpr (f == Function::softplus) return Logistic(-log2_e * x).share;
    if constexpr (f == Function::softsign) {
        const float r = reciprocal(1.0f + fabsf(x));
        return r * r;
    }
    if constexpr (f == Function::hardswish) {
        const float outside = x > 0.0f ? 1.0f : 0.0f;
        return fabsf(x) >= 3.0f ? outside : fmaf(x, 1.0f / 3.0f, 0.5f);
    }
    if constexpr (f == Function::hardsigmoid) return fabsf(x) < 3.0f ? 1.0f / 6.0f : 0.0f;
    if constexpr (f == Function::hardtanh) return fabsf(x) < 1.0f ? 1.0f : 0.0f;
    if constexpr (f == Function::exp) return expf(x);
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
}

}  // namespace opbench
