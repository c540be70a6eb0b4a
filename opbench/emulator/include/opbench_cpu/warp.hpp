// Declares barriers, votes, shuffles, matches and reductions. Each call passes its position in the .cu for reports.
#pragma once

#define OPB_SITE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()
constexpr unsigned opb_full_mask = 0xffffffffu;

OPB_CONVERGENT __forceinline__ void __syncthreads(OPB_SITE) { opb_syncthreads(file, line); }
OPB_CONVERGENT __forceinline__ int __syncthreads_count(int predicate, OPB_SITE) {
  return opb_syncthreads_reduce(OPB_BARRIER_COUNT, predicate, file, line);
}
OPB_CONVERGENT __forceinline__ int __syncthreads_and(int predicate, OPB_SITE) {
  return opb_syncthreads_reduce(OPB_BARRIER_AND, predicate, file, line);
}
OPB_CONVERGENT __forceinline__ int __syncthreads_or(int predicate, OPB_SITE) {
  return opb_syncthreads_reduce(OPB_BARRIER_OR, predicate, file, line);
}
OPB_CONVERGENT __forceinline__ void __syncwarp(unsigned mask = opb_full_mask, OPB_SITE) {
  opb_warp(mask, OPB_WARP_SYNC, 0, 0, file, line);
}
#ifdef OPB_TRACE
static inline void opb_fence(unsigned word) { opb_trace_fence(word); }
#else
static inline void opb_fence(unsigned word) {
  if (word & OPB_BLOCK_SCOPE) return __atomic_signal_fence(__ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif
static inline void __threadfence() { opb_fence(OPB_ACQUIRES | OPB_RELEASES); }
static inline void __threadfence_block() { opb_fence(OPB_ACQUIRES | OPB_RELEASES | OPB_BLOCK_SCOPE); }
static inline void __threadfence_system() { __threadfence(); }
static inline void __nanosleep(unsigned) { opb_yield(); }

// ---- votes
OPB_CONVERGENT __forceinline__ unsigned __ballot_sync(unsigned mask, int predicate, OPB_SITE) {
  return (unsigned)opb_warp(mask, OPB_WARP_BALLOT, predicate != 0, 0, file, line);
}
OPB_CONVERGENT __forceinline__ int __any_sync(unsigned mask, int predicate, OPB_SITE) {
  return opb_warp(mask, OPB_WARP_BALLOT | OPB_FORM_ANY, predicate != 0, 0, file, line) != 0;
}
OPB_CONVERGENT __forceinline__ int __all_sync(unsigned mask, int predicate, OPB_SITE) {
  return opb_warp(mask, OPB_WARP_BALLOT | OPB_FORM_ALL, predicate == 0, 0, file, line) == 0;
}
OPB_CONVERGENT __forceinline__ unsigned __activemask(OPB_SITE) {
  return (unsigned)opb_warp(opb_full_mask, OPB_WARP_ACTIVE, 0, 0, file, line);
}

// ---- shuffles
template <class T>
OPB_CONVERGENT __forceinline__ T opb_shuffle(unsigned mask, T value, int source_lane, const char* file, unsigned line,
                                          unsigned form = 0) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = opb_warp(mask, OPB_WARP_SHUFFLE | form, bits, source_lane, file, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
OPB_CONVERGENT __forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32, OPB_SITE) {
  int lane = opb_lane_id();
  return opb_shuffle(mask, value, (lane & ~(width - 1)) + (source & (width - 1)), file, line, OPB_FORM_INDEX);
}
template <class T>
OPB_CONVERGENT __forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, OPB_SITE) {
  int lane = opb_lane_id(), source = lane - (int)delta;
  return opb_shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, file, line, OPB_FORM_UP);
}
template <class T>
OPB_CONVERGENT __forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, OPB_SITE) {
  int lane = opb_lane_id(), source = lane + (int)delta;
  return opb_shuffle(mask, value, source >= (lane & ~(width - 1)) + width ? lane : source, file, line, OPB_FORM_DOWN);
}
template <class T>
OPB_CONVERGENT __forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, OPB_SITE) {
  int lane = opb_lane_id(), source = lane ^ lane_mask;
  return opb_shuffle(mask, value, source >= (lane & ~(width - 1)) + width ? lane : source, file, line, OPB_FORM_XOR);
}

// ---- matches
template <class T>
OPB_CONVERGENT __forceinline__ unsigned __match_any_sync(unsigned mask, T value, OPB_SITE) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return (unsigned)opb_warp(mask, OPB_WARP_MATCH_ANY, bits, 0, file, line);
}
template <class T>
OPB_CONVERGENT __forceinline__ unsigned __match_all_sync(unsigned mask, T value, int* equal, OPB_SITE) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  unsigned lanes = (unsigned)opb_warp(mask, OPB_WARP_MATCH_ALL, bits, 0, file, line);
  *equal = lanes != 0;
  return lanes;
}

// ---- reductions
#define OPB_WARP_REDUCE(NAME, SIGNED_KIND, UNSIGNED_KIND)                                                         \
  OPB_CONVERGENT __forceinline__ int NAME(unsigned mask, int value, OPB_SITE) {                                   \
    return (int)opb_warp(mask, SIGNED_KIND, (unsigned)value, 0, file, line);                                      \
  }                                                                                                               \
  OPB_CONVERGENT __forceinline__ unsigned NAME(unsigned mask, unsigned value, OPB_SITE) {                         \
    return (unsigned)opb_warp(mask, UNSIGNED_KIND, value, 0, file, line);                                         \
  }
OPB_WARP_REDUCE(__reduce_add_sync, OPB_WARP_ADD, OPB_WARP_ADD)
OPB_WARP_REDUCE(__reduce_min_sync, OPB_WARP_MIN_SIGNED, OPB_WARP_MIN_UNSIGNED)
OPB_WARP_REDUCE(__reduce_max_sync, OPB_WARP_MAX_SIGNED, OPB_WARP_MAX_UNSIGNED)
OPB_WARP_REDUCE(__reduce_and_sync, OPB_WARP_AND, OPB_WARP_AND)
OPB_WARP_REDUCE(__reduce_or_sync, OPB_WARP_OR, OPB_WARP_OR)
OPB_WARP_REDUCE(__reduce_xor_sync, OPB_WARP_XOR, OPB_WARP_XOR)
