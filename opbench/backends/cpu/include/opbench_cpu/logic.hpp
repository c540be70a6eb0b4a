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

}  // namespace opb_ptx
