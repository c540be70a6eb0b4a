// Declares memcpy, memmove, memset and memcmp of a traced build where -fsanitize=thread does not instrument them.
//
// GCC instruments none; clang calls __tsan_memcpy and the like, but does not instrument memcmp. ptx.py replaces calls of
// the __builtin_ forms by calls of these functions, and -fno-builtin-memcpy (toolchain.py) keeps the compiler from
// expanding a call into instructions that are not instrumented.
#pragma once

#ifdef OPB_TRACE
#define OPB_SEEN_COPY extern inline __attribute__((always_inline, gnu_inline, artificial))
#define OPB_ROOM(POINTER) __builtin_object_size(POINTER, 0)

extern "C" {
#ifndef __clang__
OPB_SEEN_COPY void* memcpy(void* to, const void* from, size_t bytes) noexcept {
  return opb_trace_memcpy(to, from, bytes, OPB_ROOM(to), OPB_ROOM(from));
}
OPB_SEEN_COPY void* memmove(void* to, const void* from, size_t bytes) noexcept {
  return opb_trace_memmove(to, from, bytes, OPB_ROOM(to), OPB_ROOM(from));
}
OPB_SEEN_COPY void* memset(void* to, int value, size_t bytes) noexcept {
  return opb_trace_memset(to, value, bytes, OPB_ROOM(to));
}
#endif
OPB_SEEN_COPY int memcmp(const void* left, const void* right, size_t bytes) noexcept {
  return opb_trace_memcmp(left, right, bytes, OPB_ROOM(left), OPB_ROOM(right));
}
}
#endif
