// Declares the names of CUDA's 8-bit float header, with conversions that round to nearest even and saturate.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

static inline float opb_widen_fp8(unsigned char bits, __nv_fp8_interpretation_t kind) {
  const int digits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const int magnitude = bits & 0x7f, exponent = magnitude >> digits, fraction = magnitude & ((1 << digits) - 1);
  float value;
  if (kind == __NV_E4M3 ? magnitude == 0x7f : magnitude > 0x7c) {
    value = __builtin_nanf("");
  } else if (kind == __NV_E5M2 && magnitude == 0x7c) {
    value = __builtin_inff();
  } else if (exponent == 0) {
    value = ldexpf((float)fraction, 1 - bias - digits);
  } else {
    value = ldexpf((float)(fraction | 1 << digits), exponent - bias - digits);
  }
  return bits & 0x80 ? -value : value;
}
static inline unsigned char opb_narrow_fp8(double value, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
  const int digits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const unsigned char sign = __builtin_signbit(value) ? 0x80 : 0, largest = kind == __NV_E4M3 ? 0x7e : 0x7b;
  const unsigned char beyond = saturation == __NV_SATFINITE ? largest : kind == __NV_E4M3 ? 0x7f : 0x7c;
  if (!(value == value)) return kind == __NV_E4M3 ? 0x7f : 0x7e;
  value = __builtin_fabs(value);
  if (value > (kind == __NV_E4M3 ? 1e4 : 1e6)) return sign | beyond;
  int exponent = 0;
  frexp(value, &exponent);
  exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  // A carry out of the mantissa increments the exponent, as in an integer addition.
  const int scaled = (int)nearbyint(ldexp(value, digits - exponent));
  const int bits = scaled < 1 << digits ? scaled : ((exponent + bias) << digits) + scaled - (1 << digits);
  return sign | (bits > largest ? beyond : (unsigned char)bits);
}
static inline unsigned char __nv_cvt_float_to_fp8(float x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return opb_narrow_fp8(x, s, k);
}
static inline unsigned char __nv_cvt_double_to_fp8(double x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return opb_narrow_fp8(x, s, k);
}
static inline unsigned char __nv_cvt_halfraw_to_fp8(__half x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return opb_narrow_fp8((float)x, s, k);
}
static inline unsigned char __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16 x, __nv_saturation_t s,
                                                        __nv_fp8_interpretation_t k) {
  return opb_narrow_fp8((float)x, s, k);
}
static inline unsigned short __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t s, __nv_fp8_interpretation_t k) {
  return (unsigned short)(opb_narrow_fp8(x.x, s, k) | opb_narrow_fp8(x.y, s, k) << 8);
}

template <__nv_fp8_interpretation_t Kind>
struct opb_float8 {
  unsigned char __x;
  opb_float8() = default;
  explicit opb_float8(float x) : __x(opb_narrow_fp8(x, __NV_SATFINITE, Kind)) {}
  explicit opb_float8(double x) : __x(opb_narrow_fp8(x, __NV_SATFINITE, Kind)) {}
  explicit opb_float8(int x) : __x(opb_narrow_fp8(x, __NV_SATFINITE, Kind)) {}
  explicit opb_float8(__half x) : opb_float8((float)x) {}
  explicit opb_float8(__nv_bfloat16 x) : opb_float8((float)x) {}
  explicit operator float() const { return opb_widen_fp8(__x, Kind); }
  explicit operator double() const { return opb_widen_fp8(__x, Kind); }
  explicit operator __half() const { return __half(opb_widen_fp8(__x, Kind)); }
  explicit operator __nv_bfloat16() const { return __nv_bfloat16(opb_widen_fp8(__x, Kind)); }
};
template <__nv_fp8_interpretation_t Kind>
struct opb_float8x2 {
  unsigned short __x;
  opb_float8x2() = default;
  explicit opb_float8x2(float2 x) : __x(__nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, Kind)) {}
  explicit opb_float8x2(__half2 x) : opb_float8x2(__half22float2(x)) {}
  explicit opb_float8x2(__nv_bfloat162 x) : opb_float8x2(__bfloat1622float2(x)) {}
  explicit operator float2() const {
    return make_float2(opb_widen_fp8((unsigned char)__x, Kind), opb_widen_fp8((unsigned char)(__x >> 8), Kind));
  }
};
template <__nv_fp8_interpretation_t Kind>
struct opb_float8x4 {
  unsigned __x;
  opb_float8x4() = default;
  explicit opb_float8x4(float4 v)
      : __x(__nv_cvt_float2_to_fp8x2(make_float2(v.x, v.y), __NV_SATFINITE, Kind) |
            (unsigned)__nv_cvt_float2_to_fp8x2(make_float2(v.z, v.w), __NV_SATFINITE, Kind) << 16) {}
  opb_float8x4(float2 low, float2 high) : opb_float8x4(make_float4(low.x, low.y, high.x, high.y)) {}
  opb_float8x4(__half2 low, __half2 high) : opb_float8x4(__half22float2(low), __half22float2(high)) {}
  opb_float8x4(__nv_bfloat162 low, __nv_bfloat162 high)
      : opb_float8x4(__bfloat1622float2(low), __bfloat1622float2(high)) {}
  explicit operator float4() const {
    return make_float4(opb_widen_fp8((unsigned char)__x, Kind), opb_widen_fp8((unsigned char)(__x >> 8), Kind),
                       opb_widen_fp8((unsigned char)(__x >> 16), Kind),
                       opb_widen_fp8((unsigned char)(__x >> 24), Kind));
  }
};
using __nv_fp8_e4m3 = opb_float8<__NV_E4M3>;
using __nv_fp8_e5m2 = opb_float8<__NV_E5M2>;
using __nv_fp8x2_e4m3 = opb_float8x2<__NV_E4M3>;
using __nv_fp8x2_e5m2 = opb_float8x2<__NV_E5M2>;
using __nv_fp8x4_e4m3 = opb_float8x4<__NV_E4M3>;
using __nv_fp8x4_e5m2 = opb_float8x4<__NV_E5M2>;
