// Implements CUDA's rarer intrinsics: integer extremes, directed rounding, bytes of a word, special functions.
#pragma once

#define OPB_EXTREMES(PREFIX, T)                                              \
  static inline T PREFIX##min(T a, T b) { return a < b ? a : b; }            \
  static inline T PREFIX##max(T a, T b) { return a > b ? a : b; }
OPB_EXTREMES(u, unsigned)
OPB_EXTREMES(ll, long long)
OPB_EXTREMES(ull, unsigned long long)

// ---- directed rounding: the result to nearest, moved by one unit in the last place if it is on the wrong side. Sums and
// products of floats are (almost) exact in double, which shows the side; quotients are multiplied back.
template <class T>
static inline T opb_next(T value, bool up) {
  if (!(value - value == 0)) return value;
  using Bits = opb_choose<sizeof(T) == 4, unsigned, unsigned long long>;
  if (value == 0) return opb_bit_cast<T>(Bits(Bits(1) | (up ? Bits(0) : Bits(1) << (sizeof(T) * 8 - 1))));
  Bits bits = opb_bit_cast<Bits>(value);
  return opb_bit_cast<T>((value > 0) == up ? Bits(bits + 1) : Bits(bits - 1));
}
enum opb_direction { OPB_TO_ZERO, OPB_UP, OPB_DOWN };
template <class T, class Wide>
static inline T opb_directed(Wide exact, opb_direction direction) {
  T nearest = (T)exact;
  if ((Wide)nearest == exact || !(exact == exact)) return nearest;
  const bool above = (Wide)nearest > exact;
  const bool up = direction == OPB_UP || (direction == OPB_TO_ZERO && exact < 0);
  return above == up ? nearest : opb_next(nearest, up);
}
#define OPB_DIRECTED(SUFFIX, DIRECTION)                                                                              \
  static inline float __fadd_##SUFFIX(float a, float b) { return opb_directed<float>((long double)a + b, DIRECTION); } \
  static inline float __fsub_##SUFFIX(float a, float b) { return opb_directed<float>((long double)a - b, DIRECTION); } \
  static inline float __fmul_##SUFFIX(float a, float b) { return opb_directed<float>((double)a * b, DIRECTION); }      \
  static inline float __fdiv_##SUFFIX(float a, float b) { return opb_directed<float>((long double)a / b, DIRECTION); } \
  static inline float __frcp_##SUFFIX(float a) { return opb_directed<float>(1.0L / a, DIRECTION); }                    \
  static inline float __fsqrt_##SUFFIX(float a) { return opb_directed<float>(__builtin_sqrtl(a), DIRECTION); }         \
  static inline float __fmaf_##SUFFIX(float a, float b, float c) {                                                     \
    return opb_directed<float>((long double)a * b + c, DIRECTION);                                                     \
  }                                                                                                                    \
  static inline float __int2float_##SUFFIX(int a) { return opb_directed<float>((double)a, DIRECTION); }                \
  static inline float __uint2float_##SUFFIX(unsigned a) { return opb_directed<float>((double)a, DIRECTION); }          \
  static inline float __ll2float_##SUFFIX(long long a) { return opb_directed<float>((long double)a, DIRECTION); }      \
  static inline float __double2float_##SUFFIX(double a) { return opb_directed<float>(a, DIRECTION); }
OPB_DIRECTED(rz, OPB_TO_ZERO)
OPB_DIRECTED(ru, OPB_UP)
OPB_DIRECTED(rd, OPB_DOWN)
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline int __double2hiint(double x) { return (int)(opb_bit_cast<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)opb_bit_cast<unsigned long long>(x); }
static inline double __hiloint2double(int high, int low) {
  return opb_bit_cast<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

// ---- functions
static inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
static inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
static inline float rnorm3df(float x, float y, float z) { return 1.0f / norm3df(x, y, z); }
static inline float norm4df(float x, float y, float z, float w) { return sqrtf(x * x + y * y + z * z + w * w); }
static inline double norm3d(double x, double y, double z) { return sqrt(x * x + y * y + z * z); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }
static inline double rhypot(double x, double y) { return 1.0 / hypot(x, y); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static inline void sincospif(float x, float* sine, float* cosine) { *sine = sinpif(x), *cosine = cospif(x); }
static inline float erfcxf(float x) { return (float)(exp((double)x * x) * erfc((double)x)); }
// Newton's method from Winitzki's approximation: exact up to the second last digit of a double.
static inline double erfinv(double x) {
  if (!(x > -1 && x < 1)) return x == 1 ? __builtin_inf() : x == -1 ? -__builtin_inf() : __builtin_nan("");
  const double log_part = log((1 - x) * (1 + x)), first = 2 / (3.14159265358979323846 * 0.147) + log_part / 2;
  double y = __builtin_copysign(sqrt(sqrt(first * first - log_part / 0.147) - first), x);
  for (int step = 0; step < 4; ++step) y -= (erf(y) - x) * 0.88622692545275801365 * exp(y * y);
  return x == 0 ? x : y;
}
static inline float erfinvf(float x) { return (float)erfinv(x); }
static inline float erfcinvf(float x) { return (float)erfinv(1.0 - x); }
static inline float normcdfinvf(float x) { return (float)(1.41421356237309504880 * erfinv(2.0 * x - 1.0)); }

// ---- bytes and halves of a word
static inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
static inline unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
static inline unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int byte = 0; byte < 4; ++byte) c += (a >> (8 * byte) & 0xffu) * (b >> (8 * byte) & 0xffu);
  return c;
}
static inline int __dp2a_lo(int a, int b, int c) {
  return c + (short)a * (signed char)b + (short)(a >> 16) * (signed char)(b >> 8);
}
static inline int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
template <class Lane, class Operation>
static inline unsigned opb_by_lanes(unsigned a, unsigned b, Operation operation) {
  unsigned result = 0;
  for (unsigned at = 0; at < 32; at += 8 * sizeof(Lane)) {
    constexpr unsigned mask = sizeof(Lane) == 1 ? 0xffu : 0xffffu;
    result |= ((unsigned)operation((Lane)(a >> at), (Lane)(b >> at)) & mask) << at;
  }
  return result;
}
#define OPB_LANES(NAME, BYTE, EXPRESSION)                                                             \
  static inline unsigned NAME(unsigned a, unsigned b) {                                               \
    return opb_by_lanes<BYTE>(a, b, [](BYTE x, BYTE y) { return (int)(EXPRESSION); });                \
  }
OPB_LANES(__vadd4, unsigned char, x + y)
OPB_LANES(__vadd2, unsigned short, x + y)
OPB_LANES(__vsub4, unsigned char, x - y)
OPB_LANES(__vsub2, unsigned short, x - y)
OPB_LANES(__vsubss4, signed char, (x - y > 127 ? 127 : x - y < -128 ? -128 : x - y))
OPB_LANES(__vaddss4, signed char, (x + y > 127 ? 127 : x + y < -128 ? -128 : x + y))
OPB_LANES(__vaddus4, unsigned char, (x + y > 255 ? 255 : x + y))
OPB_LANES(__vabsdiffu4, unsigned char, x > y ? x - y : y - x)
OPB_LANES(__vminu4, unsigned char, x < y ? x : y)
OPB_LANES(__vmaxu4, unsigned char, x > y ? x : y)
OPB_LANES(__vmins4, signed char, x < y ? x : y)
OPB_LANES(__vmaxs4, signed char, x > y ? x : y)
OPB_LANES(__vminu2, unsigned short, x < y ? x : y)
OPB_LANES(__vmaxu2, unsigned short, x > y ? x : y)
OPB_LANES(__vmins2, short, x < y ? x : y)
OPB_LANES(__vmaxs2, short, x > y ? x : y)
OPB_LANES(__vcmpeq4, unsigned char, x == y ? 0xff : 0)
OPB_LANES(__vcmpne4, unsigned char, x != y ? 0xff : 0)
OPB_LANES(__vcmpgtu4, unsigned char, x > y ? 0xff : 0)
OPB_LANES(__vcmpgeu4, unsigned char, x >= y ? 0xff : 0)
OPB_LANES(__vcmpgts4, signed char, x > y ? 0xff : 0)
OPB_LANES(__vseteq4, unsigned char, x == y ? 1 : 0)
OPB_LANES(__vavgu4, unsigned char, (x + y + 1) >> 1)
