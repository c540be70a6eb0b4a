// Defines CUDA's vector types with their alignments, and loads and stores with cache hints.
#pragma once

// LLVM splits the copy of a structure into its members before instrumentation; a copy through one wide word stays one
// access, as on a GPU. GCC keeps copies whole with an option, and the types stay aggregates.
#if defined(OPB_TRACE) && defined(__clang__)
template <unsigned Bytes>
struct opb_wide_word {
  typedef unsigned type __attribute__((vector_size(Bytes < 16 ? Bytes : 16), may_alias));
};
template <>
struct opb_wide_word<4> {
  typedef unsigned type __attribute__((may_alias));
};
template <>
struct opb_wide_word<2> {
  typedef unsigned short type __attribute__((may_alias));
};
template <class T>
__forceinline__ void opb_copy_whole(T* to, const T* from) {
  using Word = typename opb_wide_word<sizeof(T)>::type;
  *(Word*)to = *(const Word*)from;
  if constexpr (sizeof(T) > sizeof(Word)) ((Word*)to)[1] = ((const Word*)from)[1];
}
#define OPB_COPY_WHOLE(NAME)                                                    \
  __forceinline__ NAME(const NAME& other) { opb_copy_whole(this, &other); }     \
  __forceinline__ NAME& operator=(const NAME& other) {                          \
    opb_copy_whole(this, &other);                                               \
    return *this;                                                               \
  }
#define OPB_WHOLE2(NAME, SCALAR)                                \
  NAME() = default;                                             \
  constexpr NAME(SCALAR x, SCALAR y = 0) : x(x), y(y) {} \
  OPB_COPY_WHOLE(NAME)
#define OPB_WHOLE4(NAME, SCALAR)                                                          \
  NAME() = default;                                                                       \
  constexpr NAME(SCALAR x, SCALAR y = 0, SCALAR z = 0, SCALAR w = 0) \
      : x(x), y(y), z(z), w(w) {}                                                         \
  OPB_COPY_WHOLE(NAME)
#else
#define OPB_COPY_WHOLE(NAME)
#define OPB_WHOLE2(NAME, SCALAR)
#define OPB_WHOLE4(NAME, SCALAR)
#endif

#define OPB_VECTORS(SCALAR, NAME, ALIGN2, ALIGN4)                                                      \
  struct NAME##1 {                                                                                     \
    SCALAR x;                                                                                          \
  };                                                                                                   \
  struct __attribute__((aligned(ALIGN2))) NAME##2 {                                                    \
    SCALAR x, y;                                                                                       \
    OPB_WHOLE2(NAME##2, SCALAR)                                                                        \
  };                                                                                                   \
  struct __attribute__((aligned(ALIGN4))) NAME##4 {                                                    \
    SCALAR x, y, z, w;                                                                                 \
    OPB_WHOLE4(NAME##4, SCALAR)                                                                        \
  };                                                                                                   \
  static inline NAME##1 make_##NAME##1(SCALAR x) { return {x}; }                                       \
  static inline NAME##2 make_##NAME##2(SCALAR x, SCALAR y) { return {x, y}; }                          \
  static inline NAME##4 make_##NAME##4(SCALAR x, SCALAR y, SCALAR z, SCALAR w) { return {x, y, z, w}; }

#define OPB_VECTOR3(SCALAR, NAME) \
  struct NAME##3 {                \
    SCALAR x, y, z;               \
  };                              \
  static inline NAME##3 make_##NAME##3(SCALAR x, SCALAR y, SCALAR z) { return {x, y, z}; }

OPB_VECTORS(float, float, 8, 16)
OPB_VECTORS(int, int, 8, 16)
OPB_VECTORS(unsigned, uint, 8, 16)
OPB_VECTORS(short, short, 4, 8)
OPB_VECTORS(unsigned short, ushort, 4, 8)
OPB_VECTORS(signed char, char, 2, 4)
OPB_VECTORS(unsigned char, uchar, 2, 4)
OPB_VECTORS(double, double, 16, 16)
OPB_VECTORS(long, long, 16, 16)
OPB_VECTORS(unsigned long, ulong, 16, 16)
OPB_VECTORS(long long, longlong, 16, 16)
OPB_VECTORS(unsigned long long, ulonglong, 16, 16)
OPB_VECTOR3(float, float)
OPB_VECTOR3(int, int)
OPB_VECTOR3(short, short)
OPB_VECTOR3(unsigned short, ushort)
OPB_VECTOR3(signed char, char)
OPB_VECTOR3(unsigned char, uchar)
OPB_VECTOR3(double, double)
OPB_VECTOR3(long long, longlong)
OPB_VECTOR3(unsigned long long, ulonglong)
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

#define OPB_LOAD(NAME)                 \
  template <class T>                   \
  __forceinline__ T NAME(const T* p) { \
    return *p;                         \
  }
OPB_LOAD(__ldg)
OPB_LOAD(__ldca)
OPB_LOAD(__ldcs)
OPB_LOAD(__ldlu)

#ifdef OPB_TRACE
#define OPB_BYPASS_L1 opb_trace_bypass_l1()
#else
#define OPB_BYPASS_L1 (void)0
#endif
#define OPB_LOAD_AROUND_L1(NAME)       \
  template <class T>                   \
  __forceinline__ T NAME(const T* p) { \
    OPB_BYPASS_L1;                     \
    return *p;                         \
  }
OPB_LOAD_AROUND_L1(__ldcg)
OPB_LOAD_AROUND_L1(__ldcv)

#define OPB_STORE(NAME)                                 \
  template <class T>                                    \
  __forceinline__ void NAME(T* p, opb_identity<T> v) { \
    *p = v;                                             \
  }
OPB_STORE(__stwb)
OPB_STORE(__stcg)
OPB_STORE(__stcs)
OPB_STORE(__stwt)
