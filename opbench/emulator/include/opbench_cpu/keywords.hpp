// Defines CUDA's keywords and built-in variables in C++.
#pragma once
#include "formats.hpp"

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
// __noinline__ is left to ptx.py: as a macro it would break the __attribute__((__noinline__)) of system headers.
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __managed__
// An attribute that no compiler knows; constant_variables() of ptx.py reads the names of the variables with it.
#define __constant__ __attribute__((opb_constant))
#define __inline__ inline

// At block scope thread_local implies static, so `__shared__ float tile[32][33]` is one array for all fibers of a
// worker; `extern __shared__ T s[]` stays a legal declaration, which the link step aliases to the dynamic array.
// Constant initialisation avoids the call of a wrapper at each use.
#ifdef __clang__
#define OPB_CONSTINIT __attribute__((require_constant_initialization))
#else
#define OPB_CONSTINIT __constinit
#endif
// Contains no macro of the shim, because those are hidden from kernels. `used`: without it, the compiler of a traced build
// replaces reads of an array that no line writes by zeros.
#if defined(OPB_TRACE) && defined(__clang__)
#define __shared__ __attribute__((require_constant_initialization)) __attribute__((used)) thread_local
#elif defined(OPB_TRACE)
#define __shared__ __constinit __attribute__((used)) thread_local
#elif defined(__clang__)
#define __shared__ __attribute__((require_constant_initialization)) thread_local
#else
#define __shared__ __constinit thread_local
#endif
// A gap before the first array: an index below 0 must not reach the heap, where thread-local memory comes from.
asm(".pushsection .tbss,\"awT\",@nobits\n.zero 1024\n.popsection");

// In a traced build, the compiler instruments every access. These functions are excluded, and record themselves the
// accesses that a GPU would make, with the position of their caller.
#ifdef OPB_TRACE
#ifdef __clang__
#define OPB_UNSEEN __attribute__((noinline, no_sanitize("thread", "coverage")))
#elif __has_attribute(no_sanitize_coverage)
#define OPB_UNSEEN __attribute__((noinline, no_sanitize("thread"), no_sanitize_coverage))
#else
#define OPB_UNSEEN __attribute__((noinline, no_sanitize("thread")))
#endif
#define OPB_UNSEEN_INLINE __forceinline__ __attribute__((no_sanitize("thread")))
#define OPB_SEE(POINTER, BYTES, ACCESS) \
  ::opb_trace_access((const void*)(POINTER), BYTES, OPB_ACCESS_##ACCESS, __builtin_return_address(0))
#define OPB_SEE_ATOMIC(POINTER, BYTES, WORD) \
  ::opb_trace_atomic((const void*)(POINTER), BYTES, WORD, __builtin_return_address(0))
#define OPB_SEE_SWAPPED(POINTER, BYTES, BEFORE, WORD) ::opb_trace_swapped((const void*)(POINTER), BYTES, BEFORE, WORD)
#else
#define OPB_SEE_SWAPPED(POINTER, BYTES, BEFORE, WORD) ((void)0)
#define OPB_UNSEEN inline
#define OPB_UNSEEN_INLINE __forceinline__
#define OPB_SEE(POINTER, BYTES, ACCESS) ((void)0)
#define OPB_SEE_ATOMIC(POINTER, BYTES, WORD) ((void)0)
#endif

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

#ifdef OPB_TRACE
static inline const uint3 opb_coordinates_of(unsigned which) {
  return {opb_coordinate(which, 0), opb_coordinate(which, 1), opb_coordinate(which, 2)};
}
#define threadIdx (::opb_coordinates_of(0))
#define blockIdx (::opb_coordinates_of(1))
#define blockDim (::opb_coordinates_of(2))
#define gridDim (::opb_coordinates_of(3))
#else
#define threadIdx (const_cast<const uint3&>(::opb_current.thread))
#define blockIdx (const_cast<const uint3&>(::opb_current.block))
#define blockDim (const_cast<const uint3&>(::opb_current.block_size))
#define gridDim (const_cast<const uint3&>(::opb_current.grid_size))
#endif
static constexpr int warpSize = 32;

static inline unsigned opb_lane_id() {
  const uint3 &thread = threadIdx, &size = blockDim;
  return (thread.x + size.x * (thread.y + size.y * thread.z)) % 32;
}

static inline unsigned opb_warp_id() {
  const uint3 &thread = threadIdx, &size = blockDim;
  return (thread.x + size.x * (thread.y + size.y * thread.z)) / 32;
}

// The few templates of <type_traits> and <utility> that the shim needs: those headers would double the compile time.
template <class T>
struct opb_identity_t {
  using type = T;
};
template <class T>
using opb_identity = typename opb_identity_t<T>::type;

template <bool Condition, class Then, class Else>
struct opb_choose_t {
  using type = Then;
};
template <class Then, class Else>
struct opb_choose_t<false, Then, Else> {
  using type = Else;
};
template <bool Condition, class Then, class Else>
using opb_choose = typename opb_choose_t<Condition, Then, Else>::type;
