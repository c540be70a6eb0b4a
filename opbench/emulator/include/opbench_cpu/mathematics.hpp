// Implements CUDA's arithmetic intrinsics. Approximate ones are libm's, which are more exact than a GPU's.
#pragma once

// ---- min and max: of a float NaN and a number, the number, as on the GPU
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
static inline double min(double a, double b) { return __builtin_fmin(a, b); }
static inline double max(double a, double b) { return __builtin_fmax(a, b); }
template <class A, class B>
static constexpr auto min(A a, B b) -> decltype(A() + B()) {
  using Common = decltype(A() + B());
  return Common(b) < Common(a) ? Common(b) : Common(a);
}
template <class A, class B>
static constexpr auto max(A a, B b) -> decltype(A() + B()) {
  using Common = decltype(A() + B());
  return Common(a) < Common(b) ? Common(b) : Common(a);
}

// ---- glibc declares functions of these names; macros avoid the conflict
#define __expf(...) ::expf(__VA_ARGS__)
#define __exp10f(...) ::powf(10.0f, __VA_ARGS__)
#define __logf(...) ::logf(__VA_ARGS__)
#define __log2f(...) ::log2f(__VA_ARGS__)
#define __log10f(...) ::log10f(__VA_ARGS__)
#define __sinf(...) ::sinf(__VA_ARGS__)
#define __cosf(...) ::cosf(__VA_ARGS__)
#define __tanf(...) ::tanf(__VA_ARGS__)
#define __powf(...) ::powf(__VA_ARGS__)
#define __sincosf(...) ::opb_sincosf(__VA_ARGS__)
#define __tanhf(...) ::tanhf(__VA_ARGS__)
#define rsqrt(...) ::opb_rsqrt(__VA_ARGS__)
#define rsqrtf(...) ::opb_rsqrt((float)(__VA_ARGS__))
#define sinpi(...) ::opb_sinpi(__VA_ARGS__)
#define cospi(...) ::opb_cospi(__VA_ARGS__)
#define sinpif(...) ((float)::opb_sinpi(__VA_ARGS__))
#define cospif(...) ((float)::opb_cospi(__VA_ARGS__))

static inline void opb_sincosf(float x, float* sine, float* cosine) {
  *sine = sinf(x);
  *cosine = cosf(x);
}
static inline float opb_rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline double opb_rsqrt(double x) { return 1.0 / sqrt(x); }
static inline double opb_sinpi(double x) { return sin(3.14159265358979323846 * fmod(x, 2.0)); }
static inline double opb_cospi(double x) { return cos(3.14159265358979323846 * fmod(x, 2.0)); }
static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
static inline float fdividef(float x, float y) { return x / y; }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }

// ---- single operations with a named rounding: the empty statement keeps -ffp-contract from fusing them
#if defined(__x86_64__)
#define OPB_FLOAT_REGISTER "+x"
#elif defined(__aarch64__)
#define OPB_FLOAT_REGISTER "+w"
#else
#define OPB_FLOAT_REGISTER "+m"
#endif
template <class T>
__forceinline__ T opb_unfused(T value) {
  __asm__("" : OPB_FLOAT_REGISTER(value));
  return value;
}
#define OPB_ROUNDED(NAME, T, EXPRESSION) \
  __forceinline__ T NAME(T a, T b) { return opb_unfused<T>(EXPRESSION); }
OPB_ROUNDED(__fadd_rn, float, a + b)
OPB_ROUNDED(__fsub_rn, float, a - b)
OPB_ROUNDED(__fmul_rn, float, a* b)
OPB_ROUNDED(__fdiv_rn, float, a / b)
OPB_ROUNDED(__dadd_rn, double, a + b)
OPB_ROUNDED(__dsub_rn, double, a - b)
OPB_ROUNDED(__dmul_rn, double, a* b)
OPB_ROUNDED(__ddiv_rn, double, a / b)
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// ---- conversions: out of range saturates and NaN becomes 0, as on the GPU
template <class Integer, class Real>
static inline Integer opb_to_integer(Real x) {
  constexpr bool is_signed = Integer(-1) < Integer(0);
  constexpr int bits = (int)sizeof(Integer) * 8 - (is_signed ? 1 : 0);
  constexpr Integer largest = is_signed ? Integer((1ull << bits) - 1) : Integer(-1);
  const Real limit = (Real)(1ull << (bits - 1)) * 2;
  if (!(x == x)) return 0;
  if (x >= limit) return largest;
  if (is_signed ? x < -limit : x <= Real(-1)) return is_signed ? Integer(-largest - 1) : 0;
  return (Integer)x;
}
#define OPB_CONVERT(FROM, REAL, TO, INTEGER)                                                                  \
  static inline INTEGER __##FROM##2##TO##_rn(REAL x) { return opb_to_integer<INTEGER>((REAL)nearbyint(x)); } \
  static inline INTEGER __##FROM##2##TO##_rz(REAL x) { return opb_to_integer<INTEGER>((REAL)trunc(x)); } \
  static inline INTEGER __##FROM##2##TO##_rd(REAL x) { return opb_to_integer<INTEGER>((REAL)floor(x)); } \
  static inline INTEGER __##FROM##2##TO##_ru(REAL x) { return opb_to_integer<INTEGER>((REAL)ceil(x)); }
OPB_CONVERT(float, float, int, int)
OPB_CONVERT(float, float, uint, unsigned)
OPB_CONVERT(float, float, ll, long long)
OPB_CONVERT(float, float, ull, unsigned long long)
OPB_CONVERT(double, double, int, int)
OPB_CONVERT(double, double, uint, unsigned)
OPB_CONVERT(double, double, ll, long long)
OPB_CONVERT(double, double, ull, unsigned long long)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __float_as_int(float x) { return opb_bit_cast<int>(x); }
static inline unsigned __float_as_uint(float x) { return opb_bit_cast<unsigned>(x); }
static inline float __int_as_float(int x) { return opb_bit_cast<float>(x); }
static inline float __uint_as_float(unsigned x) { return opb_bit_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return opb_bit_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return opb_bit_cast<double>(x); }

// ---- integers
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
static inline int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (unsigned)(b << 8 >> 8)); }
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __sad(int a, int b, unsigned c) { return c + (a < b ? (unsigned)b - a : (unsigned)a - b); }
static inline int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
static inline int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int byte = 0; byte < 4; ++byte) {
    unsigned select = selector >> (4 * byte);
    unsigned value = (unsigned)(both >> (8 * (select & 7))) & 0xffu;
    if (select & 8) value = value & 0x80u ? 0xffu : 0;
    result |= value << (8 * byte);
  }
  return result;
}
static inline int __dp4a(int a, int b, int c) {
  for (int byte = 0; byte < 4; ++byte) c += (int)(signed char)(a >> (8 * byte)) * (int)(signed char)(b >> (8 * byte));
  return c;
}

// ---- the rest of the device library that kernels call
static inline long long clock64() { return (long long)opb_clock(); }
static inline int clock() { return (int)opb_clock(); }
static inline unsigned long long __cvta_generic_to_shared(const void* p) { return (const char*)p - opb_shared_base(); }
static inline void* __cvta_shared_to_generic(unsigned long long offset) { return opb_shared_base() + offset; }
#define __trap() ::opb_trap("__trap()", __FILE__, __LINE__)
#define __brkpt() ::opb_trap("__brkpt()", __FILE__, __LINE__)
#define __builtin_assume(condition) ((void)0)
