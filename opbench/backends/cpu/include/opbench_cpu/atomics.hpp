// Atomic operations: real ones, because blocks run on several operating-system threads.
#pragma once

template <unsigned Bytes>
struct opb_word;
template <>
struct opb_word<2> {
  using type = unsigned short;
};
template <>
struct opb_word<4> {
  using type = unsigned;
};
template <>
struct opb_word<8> {
  using type = unsigned long long;
};

template <class T, class Update>
OPB_UNSEEN_INLINE T opb_atomic_loop(T* address, Update update) {
  using Word = typename opb_word<sizeof(T)>::type;
  Word* word = (Word*)address;
  Word expected = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T before;
    __builtin_memcpy(&before, &expected, sizeof(T));
    T after = update(before);
    Word wanted;
    __builtin_memcpy(&wanted, &after, sizeof(T));
    if (__atomic_compare_exchange_n(word, &expected, wanted, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return before;
  }
}

template <class T, class Update>
static OPB_UNSEEN T opb_atomic_update(T* address, Update update) {
  OPB_SEE(address, sizeof(T), ATOMIC);
  return opb_atomic_loop(address, update);
}

#define OPB_ATOMIC(NAME, AFTER)                                          \
  template <class T>                                                     \
  __forceinline__ T NAME(T* address, opb_identity<T> value) {            \
    return opb_atomic_update(address, [=](T old) -> T { return AFTER; }); \
  }                                                                      \
  template <class T>                                                     \
  __forceinline__ T NAME##_block(T* address, opb_identity<T> value) {      \
    return NAME(address, value);                                         \
  }                                                                      \
  template <class T>                                                     \
  __forceinline__ T NAME##_system(T* address, opb_identity<T> value) {     \
    return NAME(address, value);                                         \
  }
OPB_ATOMIC(atomicAdd, old + value)
OPB_ATOMIC(atomicSub, old - value)
OPB_ATOMIC(atomicExch, value)
OPB_ATOMIC(atomicMin, value < old ? value : old)
OPB_ATOMIC(atomicMax, value > old ? value : old)
OPB_ATOMIC(atomicAnd, old & value)
OPB_ATOMIC(atomicOr, old | value)
OPB_ATOMIC(atomicXor, old ^ value)
OPB_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
OPB_ATOMIC(atomicDec, old == T(0) || old > value ? value : T(old - 1))

template <class T>
__forceinline__ T atomicCAS(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return opb_atomic_update(address, [=](T old) -> T { return old == compare ? value : old; });
}
template <class T>
__forceinline__ T atomicCAS_block(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return atomicCAS(address, compare, value);
}
template <class T>
__forceinline__ T atomicCAS_system(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return atomicCAS(address, compare, value);
}
