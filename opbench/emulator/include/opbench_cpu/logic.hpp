// The small change of inline PTX: what blocks compute with between the instructions that they are written for.
#pragma once

namespace opb_ptx {

struct sink {  // `_`: a result that nobody wants
  template <class T>
  sink& operator=(const T&) {
    return *this;
  }
};
template <class... T>
OPB_UNSEEN_INLINE void nothing(T&... results) {
  ((results = 0), ...);
}

// Registers have bits, not types: what is as wide is copied bit by bit.
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

#define OPB_BINARY(NAME, TYPE, EXPRESSION)                                      \
  template <class To, class Left, class Right>                                  \
  OPB_UNSEEN_INLINE void NAME(To& to, const Left& first, const Right& second) { \
    TYPE a, b;                                                                  \
    move(a, first), move(b, second);                                            \
    move(to, (TYPE)(EXPRESSION));                                               \
  }
OPB_BINARY(and_pred, bool, a&& b)
OPB_BINARY(or_pred, bool, a || b)
OPB_BINARY(xor_pred, bool, a != b)
OPB_BINARY(and_b32, unsigned, a& b)
OPB_BINARY(or_b32, unsigned, a | b)
OPB_BINARY(xor_b32, unsigned, a ^ b)
OPB_BINARY(and_b64, unsigned long long, a& b)
OPB_BINARY(or_b64, unsigned long long, a | b)
OPB_BINARY(xor_b64, unsigned long long, a ^ b)
OPB_BINARY(shl_b32, unsigned, b < 32 ? a << b : 0)
OPB_BINARY(shr_b32, unsigned, b < 32 ? a >> b : 0)
OPB_BINARY(shr_u32, unsigned, b < 32 ? a >> b : 0)
OPB_BINARY(shr_s32, int, a >> (b < 31 ? b : 31))
OPB_BINARY(shl_b64, unsigned long long, b < 64 ? a << b : 0)
OPB_BINARY(shr_b64, unsigned long long, b < 64 ? a >> b : 0)
OPB_BINARY(shr_u64, unsigned long long, b < 64 ? a >> b : 0)
OPB_BINARY(add_u32, unsigned, a + b)
OPB_BINARY(add_s32, int, (int)((unsigned)a + (unsigned)b))
OPB_BINARY(add_u64, unsigned long long, a + b)
OPB_BINARY(add_s64, unsigned long long, a + b)
OPB_BINARY(sub_u32, unsigned, a - b)
OPB_BINARY(sub_s32, int, (int)((unsigned)a - (unsigned)b))
OPB_BINARY(sub_u64, unsigned long long, a - b)
OPB_BINARY(mul_lo_u32, unsigned, a* b)
OPB_BINARY(mul_lo_s32, int, (int)((unsigned)a * (unsigned)b))

#define OPB_UNARY(NAME, TYPE, EXPRESSION)                 \
  template <class To, class From>                         \
  OPB_UNSEEN_INLINE void NAME(To& to, const From& from) { \
    TYPE a;                                               \
    move(a, from);                                        \
    move(to, EXPRESSION);                                 \
  }
OPB_UNARY(not_pred, bool, !a)
OPB_UNARY(not_b32, unsigned, ~a)
OPB_UNARY(not_b64, unsigned long long, ~a)
OPB_UNARY(cvt_u64_u32, unsigned, (unsigned long long)a)
OPB_UNARY(cvt_s64_s32, int, (long long)a)
OPB_UNARY(cvt_u32_u64, unsigned long long, (unsigned)a)

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

// ---- arithmetic of any type: instructions.py names the function and the type. Operands are registers of bits.
template <class T, class From>
OPB_UNSEEN_INLINE T taken(const From& from) {
  T value;
  move(value, from);
  return value;
}
template <class T>
struct unsigned_of {
  using type = opb_choose<sizeof(T) == 8, unsigned long long, opb_choose<sizeof(T) == 4, unsigned, unsigned short>>;
};
template <class T>
struct wide_of {
  static constexpr bool is_signed = T(-1) < T(0);
  using type = opb_choose<sizeof(T) == 8, opb_choose<is_signed, __int128, unsigned __int128>,
                          opb_choose<is_signed, long long, unsigned long long>>;
};
#define OPB_ARITHMETIC(NAME, ...)                                                     \
  template <class T, class To, class A, class B>                                      \
  OPB_UNSEEN_INLINE void any_##NAME(To& to, const A& first, const B& second) {        \
    const T a = taken<T>(first), b = taken<T>(second);                                \
    move(to, (T)(__VA_ARGS__));                                                       \
  }
#define OPB_BITS(X) ((typename unsigned_of<T>::type)(X))
#define OPB_WIDE(X) ((typename wide_of<T>::type)(X))
OPB_ARITHMETIC(add, OPB_BITS(a) + OPB_BITS(b))
OPB_ARITHMETIC(sub, OPB_BITS(a) - OPB_BITS(b))
OPB_ARITHMETIC(mul_lo, OPB_WIDE(a) * OPB_WIDE(b))
OPB_ARITHMETIC(mul_hi, (OPB_WIDE(a) * OPB_WIDE(b)) >> (sizeof(T) * 8))
OPB_ARITHMETIC(div, b ? a / b : T(-1))
OPB_ARITHMETIC(rem, b ? a % b : a)
OPB_ARITHMETIC(min, b < a ? b : a)
OPB_ARITHMETIC(max, a < b ? b : a)
OPB_ARITHMETIC(and, a & b)
OPB_ARITHMETIC(or, a | b)
OPB_ARITHMETIC(xor, a ^ b)
template <class T, class To, class A, class B>
OPB_UNSEEN_INLINE void any_shl(To& to, const A& first, const B& second) {
  const unsigned by = (unsigned)second;
  move(to, by < sizeof(T) * 8 ? (T)(OPB_BITS(taken<T>(first)) << by) : T(0));
}
template <class T, class To, class A, class B>
OPB_UNSEEN_INLINE void any_shr(To& to, const A& first, const B& second) {
  const unsigned last = sizeof(T) * 8 - 1, by = (unsigned)second;
  const T a = taken<T>(first);
  move(to, by <= last ? (T)(a >> by) : (T)(a < T(0) ? T(-1) : T(0)));
}
template <class T, class To, class A, class B>
OPB_UNSEEN_INLINE void any_mul_wide(To& to, const A& a, const B& b) {
  const auto product = OPB_WIDE(taken<T>(a)) * OPB_WIDE(taken<T>(b));
  if constexpr (sizeof(T) == 2) {
    move(to, (opb_choose<wide_of<T>::is_signed, int, unsigned>)product);
  } else {
    move(to, product);
  }
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_mad_lo(To& to, const A& a, const B& b, const C& c) {
  move(to, (T)(OPB_WIDE(taken<T>(a)) * OPB_WIDE(taken<T>(b)) + OPB_WIDE(taken<T>(c))));
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_mad_hi(To& to, const A& a, const B& b, const C& c) {
  T product;
  any_mul_hi<T>(product, a, b);
  move(to, (T)(OPB_BITS(product) + OPB_BITS(taken<T>(c))));
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_mad_wide(To& to, const A& a, const B& b, const C& c) {
  typename wide_of<T>::type product;
  any_mul_wide<T>(product, a, b);
  move(to, product + taken<typename wide_of<T>::type>(c));
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_sad(To& to, const A& first, const B& second, const C& c) {
  const T a = taken<T>(first), b = taken<T>(second);
  move(to, (T)(OPB_BITS(taken<T>(c)) + (a < b ? OPB_BITS(b) - OPB_BITS(a) : OPB_BITS(a) - OPB_BITS(b))));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_abs(To& to, const A& first) {
  const T a = taken<T>(first);
  move(to, a < T(0) ? (T)(T(0) - a) : a);
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_neg(To& to, const A& first) {
  move(to, (T)(-taken<T>(first)));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_not(To& to, const A& first) {
  move(to, (T)~taken<T>(first));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_popc(To& to, const A& a) {
  move(to, (unsigned)__builtin_popcountll(OPB_BITS(taken<T>(a))));
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_clz(To& to, const A& a) {
  const unsigned long long bits = OPB_BITS(taken<T>(a));
  move(to, bits ? (unsigned)__builtin_clzll(bits) - (64 - (unsigned)sizeof(T) * 8) : (unsigned)sizeof(T) * 8);
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_bfind(To& to, const A& first) {  // of the highest bit that is no sign
  const T a = taken<T>(first);
  const unsigned long long bits = OPB_BITS(a < T(0) ? (T)~a : a);
  move(to, bits ? 63u - (unsigned)__builtin_clzll(bits) : ~0u);
}
template <class T, class To, class A>
OPB_UNSEEN_INLINE void any_brev(To& to, const A& a) {
  move(to, (T)(__brevll(OPB_BITS(taken<T>(a))) >> (64 - sizeof(T) * 8)));
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_bfe(To& to, const A& a, const B& start, const C& count) {
  const unsigned first = (unsigned)start & 255, length = (unsigned)count & 255, width = sizeof(T) * 8;
  const T value = taken<T>(a);
  if (!length) return move(to, T(0));
  T moved = first < width ? (T)(value >> first) : (T)(value < T(0) ? T(-1) : T(0));
  const unsigned lost = length < width ? width - length : 0;
  const T up = (T)(OPB_BITS(moved) << lost);
  move(to, (T)(up >> lost));
}
template <class T, class To, class A, class B, class C, class D>
OPB_UNSEEN_INLINE void any_bfi(To& to, const A& a, const B& b, const C& start, const D& count) {
  const unsigned first = (unsigned)start & 255, length = (unsigned)count & 255, width = sizeof(T) * 8;
  const T into = taken<T>(b);
  if (!length || first >= width) return move(to, into);
  const T ones = length < width ? (T)((T(1) << length) - 1) : T(-1);
  move(to, (T)((into & ~(T)(ones << first)) | (T)((taken<T>(a) & ones) << first)));
}
template <class T, class To, class A, class B, class C>
OPB_UNSEEN_INLINE void any_lop3(To& to, const A& a, const B& b, const C& c, int table) {
  const unsigned x = taken<unsigned>(a), y = taken<unsigned>(b), z = taken<unsigned>(c);
  unsigned result = 0;
  for (unsigned row = 0; row < 8; ++row) {
    if (table >> row & 1) result |= (row & 4 ? x : ~x) & (row & 2 ? y : ~y) & (row & 1 ? z : ~z);
  }
  move(to, result);
}
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
template <class T, class To, class A>
OPB_UNSEEN_INLINE void real_sqrt(To& to, const A& a) {
  move(to, (T)sqrt((double)taken<T>(a)));
}
// Of pairs of 16-bit floats in a register, and of one.
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
