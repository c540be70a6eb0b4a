// Implements atomic operations by the host's, because blocks run on several operating-system threads.
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

// `word` contains the memory order and scope (opb_access_word).
template <class T, class Update>
static OPB_UNSEEN T opb_atomic_update(T* address, unsigned word, Update update) {
  OPB_SEE_ATOMIC(address, sizeof(T), OPB_ACCESS_ATOMIC | word);
  return opb_atomic_loop(address, update);
}

template <class T>
static OPB_UNSEEN T opb_atomic_load(const T* address, unsigned word) {
  OPB_SEE_ATOMIC(address, sizeof(T), OPB_ACCESS_LOAD | OPB_STRONG | word);
  const auto bits = __atomic_load_n((const typename opb_word<sizeof(T)>::type*)address, __ATOMIC_ACQUIRE);
  T value;
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
static OPB_UNSEEN void opb_atomic_store(T* address, T value, unsigned word) {
  OPB_SEE_ATOMIC(address, sizeof(T), OPB_ACCESS_STORE | OPB_STRONG | word);
  typename opb_word<sizeof(T)>::type bits;
  __builtin_memcpy(&bits, &value, sizeof(T));
  __atomic_store_n((typename opb_word<sizeof(T)>::type*)address, bits, __ATOMIC_RELEASE);
}

// Defines CUDA's atomic functions of each scope from the value that each stores (opb_add and so on).
#define OPB_ATOMIC(NAME, WORD, AFTER)                                                            \
  template <class T>                                                                             \
  __forceinline__ T opb_##NAME(T* address, opb_identity<T> value, unsigned word) {               \
    return opb_atomic_update(address, (WORD) | word, [=](T old) -> T { return AFTER; });         \
  }                                                                                              \
  template <class T>                                                                             \
  __forceinline__ T atomic##NAME(T* address, opb_identity<T> value) {                            \
    return opb_##NAME(address, value, 0);                                                        \
  }                                                                                              \
  template <class T>                                                                             \
  __forceinline__ T atomic##NAME##_block(T* address, opb_identity<T> value) {                    \
    return opb_##NAME(address, value, OPB_BLOCK_SCOPE);                                          \
  }                                                                                              \
  template <class T>                                                                             \
  __forceinline__ T atomic##NAME##_system(T* address, opb_identity<T> value) {                   \
    return opb_##NAME(address, value, 0);                                                        \
  }
OPB_ATOMIC(Add, OPB_COUNTS, old + value)
OPB_ATOMIC(Sub, OPB_COUNTS, old - value)
OPB_ATOMIC(Exch, 0, value)
OPB_ATOMIC(Min, 0, value < old ? value : old)
OPB_ATOMIC(Max, 0, value > old ? value : old)
OPB_ATOMIC(And, 0, old & value)
OPB_ATOMIC(Or, 0, old | value)
OPB_ATOMIC(Xor, 0, old ^ value)
OPB_ATOMIC(Inc, OPB_COUNTS, old >= value ? T(0) : T(old + 1))
OPB_ATOMIC(Dec, OPB_COUNTS, old == T(0) || old > value ? value : T(old - 1))

template <class T>
static OPB_UNSEEN T opb_CAS(T* address, opb_identity<T> compare, opb_identity<T> value, unsigned word) {
  OPB_SEE_ATOMIC(address, sizeof(T), OPB_ACCESS_ATOMIC | OPB_COMPARES | word);
  const T before = opb_atomic_loop(address, [=](T old) -> T { return old == compare ? value : old; });
  if (before == compare && !(before == value)) OPB_SEE_SWAPPED(address, sizeof(T), &before, word);
  return before;
}
template <class T>
__forceinline__ T atomicCAS(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return opb_CAS(address, compare, value, 0);
}
template <class T>
__forceinline__ T atomicCAS_block(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return opb_CAS(address, compare, value, OPB_BLOCK_SCOPE);
}
template <class T>
__forceinline__ T atomicCAS_system(T* address, opb_identity<T> compare, opb_identity<T> value) {
  return opb_CAS(address, compare, value, 0);
}
