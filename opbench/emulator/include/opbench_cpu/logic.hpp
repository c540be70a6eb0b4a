// Implements the arithmetic, logic and conversion instructions of inline PTX.
#pragma once

namespace opb_ptx {

struct sink {  // `_`: an ignored result
  template <class T>
  sink& operator=(const T&) {
    return *this;
  }
};
template <class... T>
OPB_UNSEEN_INLINE void nothing(T&... results) {
  ((results = 0), ...);
}

// PTX registers are untyped: values of the same width are copied bit by bit.
template <class To, class From>
OPB_UNSEEN_INLINE void move(To& to, const From& from) {
  if constexpr (sizeof(To) == sizeof(From)) {
    __builtin_memcpy(&to, &from, sizeof to);
  } else {
    to = (To)from;
  }
}
#define OPB_MOVE(NAME)                                    \
  template <class To, class From>                         \
  OPB_UNSEEN_INLINE void NAME(To& to, const From& from) { \
    move(to, from);                                       \
  }
OPB_MOVE(mov_b16)
OPB_MOVE(mov_u16)
OPB_MOVE(mov_u32)
OPB_MOVE(mov_s32)
OPB_MOVE(mov_b32)
OPB_MOVE(mov_f32)
OPB_MOVE(mov_u64)
OPB_MOVE(mov_s64)
OPB_MOVE(mov_b64)
OPB_MOVE(mov_pred)
#define OPB_PACK(NAME, WHOLE, HALF)                                       \
  template <class To, class Low, class High>                              \
  OPB_UNSEEN_INLINE void NAME(To& to, const Low& low, const High& high) { \
    HALF halves[2];                                                       \
    move(halves[0], low), move(halves[1], high);                          \
    WHOLE whole;                                                          \
    __builtin_memcpy(&whole, halves, sizeof whole);                       \
    move(to, whole);                                                      \
  }
OPB_PACK(mov_b64_packed, unsigned long long, unsigned)
OPB_PACK(mov_b32_packed, unsigned, unsigned short)
#define OPB_UNPACK(NAME, WHOLE, HALF)                                   \
  template <class Low, class High, class From>                          \
  OPB_UNSEEN_INLINE void NAME(Low& low, High& high, const From& from) { \
    WHOLE whole;                                                        \
    move(whole, from);                                                  \
    HALF halves[2];                                                     \
    __builtin_memcpy(halves, &whole, sizeof whole);                     \
    move(low, halves[0]), move(high, halves[1]);                        \
  }
OPB_UNPACK(mov_b64_unpacked, unsigned long long, unsigned)
OPB_UNPACK(mov_b32_unpacked, unsigned, unsigned short)

#define OPB_SELECT(NAME, TYPE)                                                     \
  template <class To, class Then, class Else>                                      \
  OPB_UNSEEN_INLINE void NAME(To& to, const Then& a, const Else& b, bool chosen) { \
    TYPE left, right;                                                              \
    move(left, a), move(right, b);                                                 \
    move(to, chosen ? left : right);                                               \
  }
OPB_SELECT(selp_b32, unsigned)
OPB_SELECT(selp_u32, unsigned)
OPB_SELECT(selp_s32, int)
OPB_SELECT(selp_f32, float)
OPB_SELECT(selp_b64, unsigned long long)
OPB_SELECT(selp_u64, unsigned long long)
OPB_SELECT(selp_s64, long long)

OPB_UNSEEN_INLINE void and_pred(bool& to, bool a, bool b) { to = a && b; }
OPB_UNSEEN_INLINE void or_pred(bool& to, bool a, bool b) { to = a || b; }
OPB_UNSEEN_INLINE void xor_pred(bool& to, bool a, bool b) { to = a != b; }
OPB_UNSEEN_INLINE void not_pred(bool& to, bool from) { to = !from; }

// Two floats as one register of 16-bit numbers, the first in its upper half.
template <class Format>
OPB_UNSEEN_INLINE unsigned narrow_pair(float high, float low) {
  return (unsigned)Format::narrow(high) << 16 | Format::narrow(low);
}
#define OPB_NARROW(NAME, FORMAT) \
  OPB_UNSEEN_INLINE void NAME(unsigned& to, float high, float low) { to = narrow_pair<FORMAT>(high, low); }
OPB_NARROW(cvt_rn_bf16x2_f32, opb_bfloat_format)
OPB_NARROW(cvt_rn_f16x2_f32, opb_half_format)
#define OPB_NARROW_ONE(NAME, FORMAT) \
  OPB_UNSEEN_INLINE void NAME(unsigned short& to, float from) { to = FORMAT::narrow(from); }
OPB_NARROW_ONE(cvt_rn_bf16_f32, opb_bfloat_format)
OPB_NARROW_ONE(cvt_rn_f16_f32, opb_half_format)
#define OPB_WIDEN(NAME, FORMAT) \
  OPB_UNSEEN_INLINE void NAME(float& to, unsigned short from) { to = FORMAT::widen(from); }
OPB_WIDEN(cvt_f32_bf16, opb_bfloat_format)
OPB_WIDEN(cvt_f32_f16, opb_half_format)

// ---- integers: integers.hpp has the instructions, these are parts of their expressions. Operands are registers of bits.
template <class T, class From>
OPB_UNSEEN_INLINE T taken(const From& from) {
  T value;
  move(value, from);
  return value;
}
template <class T>
constexpr unsigned width = sizeof(T) * 8;
template <class T>
constexpr bool is_signed = T(-1) < T(0);
template <class T>
using wide = opb_choose<width<T> == 64, opb_choose<is_signed<T>, __int128, unsigned __int128>,
                        opb_choose<width<T> == 32, opb_choose<is_signed<T>, long long, unsigned long long>,
                                   opb_choose<is_signed<T>, int, unsigned>>>;
// At least 32 bits wide, so that C++ does not promote the value to int.
template <class T>
OPB_UNSEEN_INLINE auto bits(T value) {
  return (opb_choose<width<T> == 64, unsigned long long, unsigned>)value;
}
template <class T>
OPB_UNSEEN_INLINE wide<T> widened(T value) {
  return value;
}
template <class T>
OPB_UNSEEN_INLINE T high_half(wide<T> product) {
  return (T)(product >> width<T>);
}
template <class T>
OPB_UNSEEN_INLINE T saturated(wide<T> value) {
  constexpr T most = (T)~((unsigned long long)1 << (width<T> - 1)), least = ~most;
  return value > most ? most : value < least ? least : (T)value;
}
// Division by 0 as on a GPU, and by -1 without the overflow trap of a CPU.
template <class T>
OPB_UNSEEN_INLINE T quotient(T a, T b) {
  if (is_signed<T> && b == T(-1)) return (T)(0 - bits(a));
  return b ? a / b : T(-1);
}
template <class T>
OPB_UNSEEN_INLINE T remainder(T a, T b) {
  if (is_signed<T> && b == T(-1)) return 0;
  return b ? a % b : a;
}
template <class T>
OPB_UNSEEN_INLINE T shifted_right(T a, unsigned by) {
  return by < width<T> ? (T)(a >> by) : (T)(a < T(0) ? T(-1) : T(0));
}
OPB_UNSEEN_INLINE unsigned highest_bit(unsigned long long bits) {
  return bits ? 63u - (unsigned)__builtin_clzll(bits) : ~0u;
}
template <class T>
OPB_UNSEEN_INLINE T extracted(T value, unsigned first, unsigned length) {
  if (!length) return 0;
  const unsigned lost = length < width<T> ? width<T> - length : 0;
  return (T)((T)(bits(shifted_right(value, first)) << lost) >> lost);
}
template <class T>
OPB_UNSEEN_INLINE T inserted(T value, T into, unsigned first, unsigned length) {
  if (!length || first >= width<T>) return into;
  const T ones = length < width<T> ? (T(1) << length) - 1 : T(-1);
  return (into & ~(ones << first)) | (value & ones) << first;
}
OPB_UNSEEN_INLINE unsigned looked_up(unsigned a, unsigned b, unsigned c, unsigned table) {
  unsigned result = 0;
  for (unsigned row = 0; row < 8; ++row) {
    if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
  }
  return result;
}

// ---- conversions
template <class T, class To, class From>
OPB_UNSEEN_INLINE void converted(To& to, const From& from) {  // as C converts
  move(to, (T)from);
}
template <class T, class Real, class To, class From>
OPB_UNSEEN_INLINE void rounded_to_integer(To& to, const From& from, Real (*round)(Real)) {
  move(to, opb_to_integer<T>(round(taken<Real>(from))));
}

// ---- floating point
#define OPB_REAL(NAME, EXPRESSION)                                                  \
  template <class T, class To, class A, class B>                                    \
  OPB_UNSEEN_INLINE void real_##NAME(To& to, const A& first, const B& second) {     \
    const T a = taken<T>(first), b = taken<T>(second);                              \
    move(to, opb_unfused<T>(EXPRESSION));                                           \
  }
OPB_REAL(add, a + b)
OPB_REAL(sub, a - b)
OPB_REAL(mul, a* b)
OPB_REAL(div, a / b)
OPB_REAL(min, ::min(a, b))
OPB_REAL(max, ::max(a, b))
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void real_fma(To& to, const A& a, const B& b, const C& c) {
  if constexpr (sizeof(T) == 4) {
    move(to, fmaf(taken<T>(a), taken<T>(b), taken<T>(c)));
  } else {
    move(to, fma(taken<T>(a), taken<T>(b), taken<T>(c)));
  }
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_abs(To& to, const A& a) {
  move(to, taken<T>(a) < 0 ? -taken<T>(a) : taken<T>(a));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_neg(To& to, const A& a) {
  move(to, -taken<T>(a));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_rcp(To& to, const A& a) {
  move(to, T(1) / taken<T>(a));
}
// With .ftz, subnormal operands and results are zeros of the same sign.
template <class T>
OPB_UNSEEN_INLINE T without_subnormals(T x) {
  return x < 0x1p-126f && x > -0x1p-126f ? (T)__builtin_copysign(0.0, x) : x;
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_rcp_ftz(To& to, const A& a) {
  move(to, without_subnormals(T(1) / without_subnormals(taken<T>(a))));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_sqrt(To& to, const A& a) {
  move(to, (T)sqrt((double)taken<T>(a)));
}
// Operations on pairs of 16-bit floats in a register, and on single ones.
#define OPB_NARROW_REAL(NAME, EXPRESSION)                                                              \
  template <class F, class To, class A, class B>                                                       \
  OPB_UNSEEN_INLINE void pair_##NAME(To& to, const A& first, const B& second) {                        \
    unsigned result = 0;                                                                               \
    for (unsigned at = 0; at < 8 * sizeof(To); at += 16) {                                             \
      const float a = F::widen((unsigned short)((unsigned)first >> at));                               \
      const float b = F::widen((unsigned short)((unsigned)second >> at));                              \
      result |= (unsigned)F::narrow(EXPRESSION) << at;                                                 \
    }                                                                                                  \
    to = (To)result;                                                                                   \
  }
OPB_NARROW_REAL(add, a + b)
OPB_NARROW_REAL(sub, a - b)
OPB_NARROW_REAL(mul, a* b)
OPB_NARROW_REAL(min, ::min(a, b))
OPB_NARROW_REAL(max, ::max(a, b))
template <class F, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void pair_fma(To& to, const A& first, const B& second, const C& third) {
  unsigned result = 0;
  for (unsigned at = 0; at < 8 * sizeof(To); at += 16) {
    const double a = F::widen((unsigned short)((unsigned)first >> at));
    const double b = F::widen((unsigned short)((unsigned)second >> at));
    const double c = F::widen((unsigned short)((unsigned)third >> at));
    result |= (unsigned)F::narrow((float)(a * b + c)) << at;
  }
  to = (To)result;
}

}  // namespace opb_ptx

#include "integers.hpp"
