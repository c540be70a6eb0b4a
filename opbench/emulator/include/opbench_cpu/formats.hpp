// Converts the bits of 16-bit floats, for kernels and for the runtime; needs no other header.
#pragma once

template <class To, class From>
static inline To opb_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

struct opb_half_format {
  static inline float widen(unsigned short bits) {
    unsigned sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return opb_bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // 2^112 rebiases the exponent, and turns subnormals into normal floats on the way.
    float scaled = opb_bit_cast<float>(magnitude << 13) * 0x1p112f;
    return opb_bit_cast<float>(sign | opb_bit_cast<unsigned>(scaled));
  }
  static inline unsigned short narrow(float value) {
    unsigned bits = opb_bit_cast<unsigned>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x47800000u) return (unsigned short)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
      // Adding 0.5 puts the subnormal's last digit at the float's last digit: the addition rounds to nearest even.
      unsigned rounded = opb_bit_cast<unsigned>(opb_bit_cast<float>(magnitude) + 0.5f);
      return (unsigned short)(sign | (rounded - 0x3f000000u));
    }
    unsigned odd = magnitude >> 13 & 1u;
    return (unsigned short)(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
  }
};

struct opb_bfloat_format {
  static inline float widen(unsigned short bits) { return opb_bit_cast<float>((unsigned)bits << 16); }
  static inline unsigned short narrow(float value) {
    unsigned bits = opb_bit_cast<unsigned>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
};
