// Implements the 16-bit floats by one template, because CUDA's functions have the same names for both formats.
//
// Arithmetic goes through float and rounds once more to the storage type. For + - * / and sqrt that second rounding is
// innocuous (float has more than 2p + 2 digits of either format), so every operation is correctly rounded.
#pragma once

// Rounding to odd keeps what a later rounding to fewer digits needs to know, so that two roundings equal one.
static inline float opb_round_to_odd(double value) {
  float rounded = (float)value;
  if (!(value == value) || (double)rounded == value) return rounded;
  unsigned bits = opb_bit_cast<unsigned>(rounded);
  double distance = value < 0 ? -value : value;
  if ((double)(rounded < 0 ? -rounded : rounded) > distance) --bits;
  return opb_bit_cast<float>(bits | 1u);
}

static inline float opb_fused_to_odd(float a, float b, float c) {
  double product = opb_unfused((double)a * (double)b);  // exact: at most 22 digits
  double sum = opb_unfused(product + (double)c);
  double other = opb_unfused(sum - product);
  double error = opb_unfused(product - opb_unfused(sum - other)) + opb_unfused((double)c - other);
  if (error != 0 && error == error) {
    unsigned long long bits = opb_bit_cast<unsigned long long>(sum);
    if ((error < 0) != (sum < 0)) --bits;
    sum = opb_bit_cast<double>(bits | 1u);
  }
  return opb_round_to_odd(sum);
}

template <class Format>
struct opb_float16 {
  unsigned short bits;

  opb_float16() = default;
  opb_float16(float value) : bits(Format::narrow(value)) {}
  opb_float16(double value) : bits(Format::narrow(opb_round_to_odd(value))) {}
  opb_float16(int value) : bits(Format::narrow(opb_round_to_odd(value))) {}
  opb_float16(unsigned value) : bits(Format::narrow(opb_round_to_odd(value))) {}
  opb_float16(short value) : bits(Format::narrow(value)) {}
  opb_float16(unsigned short value) : bits(Format::narrow(value)) {}
  opb_float16(long long value) : bits(Format::narrow(opb_round_to_odd((double)value))) {}
  opb_float16(unsigned long long value) : bits(Format::narrow(opb_round_to_odd((double)value))) {}
  template <class Other>
  explicit opb_float16(opb_float16<Other> other) : bits(Format::narrow((float)other)) {}

  operator float() const { return Format::widen(bits); }

  static opb_float16 from_bits(unsigned short bits) {
    opb_float16 value;
    value.bits = bits;
    return value;
  }

#define OPB_SMALL_OPERATOR(SYMBOL)                                                            \
  friend opb_float16 operator SYMBOL(opb_float16 a, opb_float16 b) {                          \
    return opb_float16(Format::widen(a.bits) SYMBOL Format::widen(b.bits));                   \
  }                                                                                           \
  opb_float16& operator SYMBOL##=(opb_float16 other) { return *this = *this SYMBOL other; }
  OPB_SMALL_OPERATOR(+)
  OPB_SMALL_OPERATOR(-)
  OPB_SMALL_OPERATOR(*)
  OPB_SMALL_OPERATOR(/)
#define OPB_SMALL_COMPARISON(SYMBOL)                                       \
  friend bool operator SYMBOL(opb_float16 a, opb_float16 b) {              \
    return Format::widen(a.bits) SYMBOL Format::widen(b.bits);             \
  }
  OPB_SMALL_COMPARISON(==)
  OPB_SMALL_COMPARISON(!=)
  OPB_SMALL_COMPARISON(<)
  OPB_SMALL_COMPARISON(>)
  OPB_SMALL_COMPARISON(<=)
  OPB_SMALL_COMPARISON(>=)
  friend opb_float16 operator-(opb_float16 a) { return from_bits(a.bits ^ 0x8000u); }
};

template <class Format>
struct __attribute__((aligned(4))) opb_float16x2 {
  using Scalar = opb_float16<Format>;
  Scalar x, y;

  opb_float16x2() = default;
  opb_float16x2(Scalar x, Scalar y) : x(x), y(y) {}
  OPB_COPY_WHOLE(opb_float16x2)
#define OPB_PAIR_OPERATOR(SYMBOL)                                        \
  friend opb_float16x2 operator SYMBOL(opb_float16x2 a, opb_float16x2 b) { \
    return {a.x SYMBOL b.x, a.y SYMBOL b.y};                             \
  }                                                                      \
  opb_float16x2& operator SYMBOL##=(opb_float16x2 other) { return *this = *this SYMBOL other; }
  OPB_PAIR_OPERATOR(+)
  OPB_PAIR_OPERATOR(-)
  OPB_PAIR_OPERATOR(*)
  OPB_PAIR_OPERATOR(/)
  friend opb_float16x2 operator-(opb_float16x2 a) { return {-a.x, -a.y}; }
  friend bool operator==(opb_float16x2 a, opb_float16x2 b) { return a.x == b.x && a.y == b.y; }
};

// ---- functions of both formats. The first argument decides the format; the others may convert to it.
#define OPB_EITHER template <class F> static inline
#define OPB_OTHER opb_identity<opb_float16<F>>
#define OPB_OTHER2 opb_identity<opb_float16x2<F>>

OPB_EITHER opb_float16<F> __hfma(opb_float16<F> a, OPB_OTHER b, OPB_OTHER c) {
  return opb_float16<F>(opb_fused_to_odd(a, b, c));
}
OPB_EITHER opb_float16x2<F> __hfma2(opb_float16x2<F> a, OPB_OTHER2 b, OPB_OTHER2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
// IEEE 754-2008's maxNum and minNum, as on the GPU: of a NaN (also a signalling one, which the host's fmaxf would return)
// and a number, the number; +0 is larger than -0.
OPB_EITHER opb_float16<F> opb_larger(opb_float16<F> a, opb_float16<F> b) {
  if (a != a) return b != b ? opb_float16<F>::from_bits(0x7fff) : b;
  if (b != b || a > b) return a;
  return b > a ? b : opb_float16<F>::from_bits(a.bits & b.bits);
}
#define OPB_BINARY(NAME, EXPRESSION)                                                   \
  OPB_EITHER opb_float16<F> NAME(opb_float16<F> a, OPB_OTHER b) { return EXPRESSION; } \
  OPB_EITHER opb_float16x2<F> NAME##2(opb_float16x2<F> a, OPB_OTHER2 b) {              \
    return {NAME(a.x, b.x), NAME(a.y, b.y)};                                           \
  }
OPB_BINARY(__hadd, a + b)
OPB_BINARY(__hsub, a - b)
OPB_BINARY(__hmul, a* b)
OPB_BINARY(__hadd_rn, a + b)
OPB_BINARY(__hsub_rn, a - b)
OPB_BINARY(__hmul_rn, a* b)
OPB_BINARY(__hmax, opb_larger<F>(a, b))
OPB_BINARY(__hmin, -opb_larger<F>(-a, -opb_float16<F>(b)))
OPB_EITHER opb_float16<F> __hdiv(opb_float16<F> a, OPB_OTHER b) { return a / b; }
OPB_EITHER opb_float16x2<F> __h2div(opb_float16x2<F> a, OPB_OTHER2 b) { return a / b; }

#define OPB_UNARY(NAME, NAME2, EXPRESSION)                                \
  OPB_EITHER opb_float16<F> NAME(opb_float16<F> a) { return EXPRESSION; } \
  OPB_EITHER opb_float16x2<F> NAME2(opb_float16x2<F> a) { return {NAME(a.x), NAME(a.y)}; }
OPB_UNARY(__hneg, __hneg2, -a)
OPB_UNARY(__habs, __habs2, opb_float16<F>::from_bits(a.bits & 0x7fffu))
OPB_UNARY(hexp, h2exp, opb_float16<F>(expf(a)))
OPB_UNARY(hexp2, h2exp2, opb_float16<F>(exp2f(a)))
OPB_UNARY(hlog, h2log, opb_float16<F>(logf(a)))
OPB_UNARY(hlog2, h2log2, opb_float16<F>(log2f(a)))
OPB_UNARY(hsqrt, h2sqrt, opb_float16<F>(sqrtf(a)))
OPB_UNARY(hrsqrt, h2rsqrt, opb_float16<F>(rsqrtf(a)))
OPB_UNARY(hrcp, h2rcp, opb_float16<F>(1.0f / (float)a))
OPB_UNARY(hsin, h2sin, opb_float16<F>(sinf(a)))
OPB_UNARY(hcos, h2cos, opb_float16<F>(cosf(a)))
OPB_UNARY(htanh, h2tanh, opb_float16<F>(tanhf(a)))
OPB_UNARY(hfloor, h2floor, opb_float16<F>(floorf(a)))
OPB_UNARY(hceil, h2ceil, opb_float16<F>(ceilf(a)))
OPB_UNARY(htrunc, h2trunc, opb_float16<F>(truncf(a)))
OPB_UNARY(hrint, h2rint, opb_float16<F>(rintf(a)))

#define OPB_COMPARE(NAME, SYMBOL) \
  OPB_EITHER bool NAME(opb_float16<F> a, OPB_OTHER b) { return a SYMBOL b; }
OPB_COMPARE(__heq, ==)
OPB_COMPARE(__hne, !=)
OPB_COMPARE(__hlt, <)
OPB_COMPARE(__hle, <=)
OPB_COMPARE(__hgt, >)
OPB_COMPARE(__hge, >=)
OPB_EITHER bool __hisnan(opb_float16<F> a) { return !(a == a); }
OPB_EITHER int __hisinf(opb_float16<F> a) { return __builtin_isinf_sign((float)a); }

OPB_EITHER float __low2float(opb_float16x2<F> a) { return a.x; }
OPB_EITHER float __high2float(opb_float16x2<F> a) { return a.y; }
OPB_EITHER opb_float16x2<F> __lowhigh2highlow(opb_float16x2<F> a) { return {a.y, a.x}; }
