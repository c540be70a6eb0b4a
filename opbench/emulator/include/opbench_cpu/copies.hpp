// memcpy, memmove, memset and memcmp of a traced build, as far as the compiler's -fsanitize=thread does not see them.
//
// GCC sees none; clang calls __tsan_memcpy and the like by itself, but leaves memcmp alone. Calls of the __builtin_ forms
// become calls of these functions in the preprocessed text (ptx.py), and -fno-builtin-memcpy (toolchain.py) keeps the
// compiler from expanding a call into instructions that nothing looks at.
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
