// Implements CUB's sorts, exchanges, histograms and differences of a block, in the simplest way.
//
// As in CUB, there is no barrier at the end: reusing the temporary storage without a barrier is a race.
#pragma once
#include "collectives.hpp"

namespace cub {

struct NullType {};
#define OPB_COMPARISON(NAME, SIGN)                        \
  struct NAME {                                           \
    template <class T>                                    \
    bool operator()(const T& a, const T& b) const {       \
      return a SIGN b;                                    \
    }                                                     \
  };
OPB_COMPARISON(Equality, ==)
OPB_COMPARISON(Inequality, !=)
#undef OPB_COMPARISON
struct Difference {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a - b;
  }
};
template <class Key, class Value>
struct KeyValuePair {
  Key key;
  Value value;
};

// Converts keys to unsigned numbers of the same order.
static inline unsigned long long opb_key_bits(float key) {
  const unsigned bits = opb_bit_cast<unsigned>(key == 0.0f ? 0.0f : key);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static inline unsigned long long opb_key_bits(double key) {
  const unsigned long long bits = opb_bit_cast<unsigned long long>(key == 0.0 ? 0.0 : key), sign = 1ull << 63;
  return bits & sign ? ~bits : bits | sign;
}
template <class T>
static inline unsigned long long opb_key_bits(T key) {
  const unsigned width = 8 * sizeof(T);
  const unsigned long long sign = (T)-1 < (T)0 ? 1ull << (width - 1) : 0, all = ~0ull >> (64 - width);
  return ((unsigned long long)key & all) ^ sign;
}

// A stable sort, by one thread while all others wait. Not instrumented.
template <class Key, class Value, class Less>
OPB_UNSEEN static void opb_sort(Key* keys, Value* values, int count, Less less) {
  for (int next = 1; next < count; ++next) {
    const Key key = keys[next];
    int low = 0, high = next;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (less(key, keys[middle])) high = middle;
      else low = middle + 1;
    }
    if (low == next) continue;
    for (int place = next; place > low; --place) keys[place] = keys[place - 1];
    keys[low] = key;
    if constexpr (sizeof(Value) > sizeof(NullType)) {
      const Value value = values[next];
      for (int place = next; place > low; --place) values[place] = values[place - 1];
      values[low] = value;
    }
  }
}

template <class T, int Count>
struct opb_items {
  T values[Count];
};
template <int Count>
struct opb_items<NullType, Count> {
  NullType values[1];
};

template <class Key, int Threads, int Items, class Value>
class opb_sorter {
 public:
  struct TempStorage {
    opb_items<Key, Threads * Items> keys;
    opb_items<Value, Threads * Items> values;
  };
  explicit opb_sorter(TempStorage& storage) : storage_(storage) {}

 protected:
  template <class Less>
  OPB_CONVERGENT void sorted(Key (&keys)[Items], Value* values, Less less, bool striped, const char* file, unsigned line) {
    const int rank = opb_rank();
    for (int item = 0; item < Items; ++item) {
      storage_.keys.values[rank * Items + item] = keys[item];
      if constexpr (sizeof(Value) > sizeof(NullType)) storage_.values.values[rank * Items + item] = values[item];
    }
    opb_syncthreads(file, line);
    if (rank == 0) opb_sort(storage_.keys.values, storage_.values.values, Threads * Items, less);
    opb_syncthreads(file, line);
    for (int item = 0; item < Items; ++item) {
      const int place = striped ? item * Threads + rank : rank * Items + item;
      keys[item] = storage_.keys.values[place];
      if constexpr (sizeof(Value) > sizeof(NullType)) values[item] = storage_.values.values[place];
    }
  }

 private:
  TempStorage& storage_;
};

template <class Key, int X, int Items, class Value = NullType, int = 4, bool = true, int = 1, int = 0, int Y = 1, int Z = 1>
class BlockRadixSort : public opb_sorter<Key, X * Y * Z, Items, Value> {
  using Base = opb_sorter<Key, X * Y * Z, Items, Value>;
  OPB_CONVERGENT void run(Key (&keys)[Items], Value* values, bool down, bool striped, int begin, int end, const char* file,
                          unsigned line) {
    const unsigned long long mask = end - begin >= 64 ? ~0ull : (1ull << (end - begin)) - 1;
    this->sorted(
        keys, values,
        [=](const Key& a, const Key& b) {
          const unsigned long long left = opb_key_bits(a) >> begin & mask, right = opb_key_bits(b) >> begin & mask;
          return down ? right < left : left < right;
        },
        striped, file, line);
  }

 public:
  using Base::Base;
#define OPB_SORT(NAME, DOWN, STRIPED)                                                                        \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], int begin = 0, int end = 8 * sizeof(Key), OPB_SITE) {         \
    run(keys, nullptr, DOWN, STRIPED, begin, end, file, line);                                               \
  }                                                                                                          \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Value (&values)[Items], int begin = 0, int end = 8 * sizeof(Key), \
                           OPB_SITE) {                                                                       \
    run(keys, values, DOWN, STRIPED, begin, end, file, line);                                                \
  }
  OPB_SORT(Sort, false, false)
  OPB_SORT(SortDescending, true, false)
  OPB_SORT(SortBlockedToStriped, false, true)
  OPB_SORT(SortDescendingBlockedToStriped, true, true)
#undef OPB_SORT
};

template <class Key, int X, int Items, class Value = NullType, int Y = 1, int Z = 1>
class BlockMergeSort : public opb_sorter<Key, X * Y * Z, Items, Value> {
 public:
  using opb_sorter<Key, X * Y * Z, Items, Value>::opb_sorter;
#define OPB_SORT(NAME)                                                                              \
  template <class Less>                                                                             \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Less less, OPB_SITE) {                               \
    this->sorted(keys, nullptr, less, false, file, line);                                           \
  }                                                                                                 \
  template <class Less>                                                                             \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Value (&values)[Items], Less less, OPB_SITE) {       \
    this->sorted(keys, values, less, false, file, line);                                            \
  }
  OPB_SORT(Sort)
  OPB_SORT(StableSort)
#undef OPB_SORT
};

template <class T, int X, int Items, bool = false, int Y = 1, int Z = 1>
class BlockExchange {
 public:
  static constexpr int threads = X * Y * Z;
  using TempStorage = opb_storage<T, threads * Items>;
  explicit BlockExchange(TempStorage& storage) : storage_(storage) {}
#define OPB_EXCHANGE(NAME, FROM, TO)                                                     \
  template <class Out>                                                                   \
  OPB_CONVERGENT void NAME(const T (&in)[Items], Out (&out)[Items], OPB_SITE) {          \
    const int rank = opb_rank();                                                         \
    for (int item = 0; item < Items; ++item) storage_.values[FROM] = in[item];           \
    opb_syncthreads(file, line);                                                         \
    for (int item = 0; item < Items; ++item) out[item] = storage_.values[TO];            \
  }                                                                                      \
  OPB_CONVERGENT void NAME(T (&items)[Items], OPB_SITE) { NAME(items, items, file, line); }
#define OPB_BLOCKED (rank * Items + item)
#define OPB_STRIPED (item * threads + rank)
#define OPB_WARP_STRIPED (rank / 32 * 32 * Items + item * 32 + rank % 32)
  OPB_EXCHANGE(BlockedToStriped, OPB_BLOCKED, OPB_STRIPED)
  OPB_EXCHANGE(StripedToBlocked, OPB_STRIPED, OPB_BLOCKED)
  OPB_EXCHANGE(BlockedToWarpStriped, OPB_BLOCKED, OPB_WARP_STRIPED)
  OPB_EXCHANGE(WarpStripedToBlocked, OPB_WARP_STRIPED, OPB_BLOCKED)
#undef OPB_EXCHANGE
#define OPB_SCATTER(NAME, TO)                                                                            \
  template <class Out, class Place>                                                                      \
  OPB_CONVERGENT void NAME(const T (&in)[Items], Out (&out)[Items], Place (&places)[Items], OPB_SITE) {  \
    const int rank = opb_rank();                                                                         \
    for (int item = 0; item < Items; ++item) storage_.values[places[item]] = in[item];                   \
    opb_syncthreads(file, line);                                                                         \
    for (int item = 0; item < Items; ++item) out[item] = storage_.values[TO];                            \
  }                                                                                                      \
  template <class Place>                                                                                 \
  OPB_CONVERGENT void NAME(T (&items)[Items], Place (&places)[Items], OPB_SITE) {                        \
    NAME(items, items, places, file, line);                                                              \
  }
  OPB_SCATTER(ScatterToBlocked, OPB_BLOCKED)
  OPB_SCATTER(ScatterToStriped, OPB_STRIPED)
#undef OPB_SCATTER
#undef OPB_BLOCKED
#undef OPB_STRIPED
#undef OPB_WARP_STRIPED

 private:
  TempStorage& storage_;
};

enum BlockHistogramAlgorithm { BLOCK_HISTO_SORT, BLOCK_HISTO_ATOMIC };
template <class T, int X, int Items, int Bins, BlockHistogramAlgorithm = BLOCK_HISTO_SORT, int Y = 1, int Z = 1>
class BlockHistogram {
 public:
  struct TempStorage {
    unsigned unused;
  };
  explicit BlockHistogram(TempStorage&) {}
  template <class Counter>
  void InitHistogram(Counter (&histogram)[Bins]) {
    for (int bin = opb_rank(); bin < Bins; bin += X * Y * Z) histogram[bin] = 0;
  }
  template <class Counter>
  void Composite(T (&items)[Items], Counter (&histogram)[Bins]) {
    for (int item = 0; item < Items; ++item) atomicAdd(&histogram[items[item]], (Counter)1);
  }
  template <class Counter>
  OPB_CONVERGENT void Histogram(T (&items)[Items], Counter (&histogram)[Bins], OPB_SITE) {
    InitHistogram(histogram);
    opb_syncthreads(file, line);
    Composite(items, histogram);
  }
};

// The item before the first and after the last item of each thread.
template <class T, int Threads>
class opb_neighbours {
 public:
  struct TempStorage {
    T first[Threads], last[Threads];
  };
  explicit opb_neighbours(TempStorage& storage) : storage_(storage) {}

 protected:
  template <int Items>
  OPB_CONVERGENT void meet(T (&items)[Items], const char* file, unsigned line) {
    storage_.first[opb_rank()] = items[0], storage_.last[opb_rank()] = items[Items - 1];
    opb_syncthreads(file, line);
  }
  TempStorage& storage_;
};

template <class T, int X, int Y = 1, int Z = 1>
class BlockDiscontinuity : public opb_neighbours<T, X * Y * Z> {
  template <class Flag, int Items, class Differs>
  void heads(Flag (&flags)[Items], T (&items)[Items], Differs differs, const T* before) {
    const int rank = opb_rank();
    for (int item = Items - 1; item > 0; --item) flags[item] = differs(items[item - 1], items[item]);
    if (rank) flags[0] = differs(this->storage_.last[rank - 1], items[0]);
    else flags[0] = before ? differs(*before, items[0]) : 1;
  }
  template <class Flag, int Items, class Differs>
  void tails(Flag (&flags)[Items], T (&items)[Items], Differs differs, const T* after) {
    const int rank = opb_rank();
    for (int item = 0; item < Items - 1; ++item) flags[item] = differs(items[item], items[item + 1]);
    if (rank < X * Y * Z - 1) flags[Items - 1] = differs(items[Items - 1], this->storage_.first[rank + 1]);
    else flags[Items - 1] = after ? differs(items[Items - 1], *after) : 1;
  }

 public:
  using opb_neighbours<T, X * Y * Z>::opb_neighbours;
#define OPB_FLAGS(NAME, ACT)                                                                                    \
  template <class Flag, int Items, class Differs>                                                               \
  OPB_CONVERGENT void NAME(Flag (&flags)[Items], T (&items)[Items], Differs differs, OPB_SITE) {                \
    this->meet(items, file, line);                                                                              \
    ACT(flags, items, differs, (const T*)nullptr);                                                              \
  }                                                                                                             \
  template <class Flag, int Items, class Differs>                                                               \
  OPB_CONVERGENT void NAME(Flag (&flags)[Items], T (&items)[Items], Differs differs, T beyond, OPB_SITE) {      \
    this->meet(items, file, line);                                                                              \
    ACT(flags, items, differs, &beyond);                                                                        \
  }
  OPB_FLAGS(FlagHeads, heads)
  OPB_FLAGS(FlagTails, tails)
#undef OPB_FLAGS
  template <class Flag, int Items, class Differs>
  OPB_CONVERGENT void FlagHeadsAndTails(Flag (&first)[Items], Flag (&last)[Items], T (&items)[Items], Differs differs,
                                        OPB_SITE) {
    this->meet(items, file, line);
    heads(first, items, differs, (const T*)nullptr), tails(last, items, differs, (const T*)nullptr);
  }
};

template <class T, int X, int Y = 1, int Z = 1>
class BlockAdjacentDifference : public opb_neighbours<T, X * Y * Z> {
 public:
  using opb_neighbours<T, X * Y * Z>::opb_neighbours;
  template <int Items, class Out, class Operation>
  OPB_CONVERGENT void SubtractLeft(T (&in)[Items], Out (&out)[Items], Operation operation, OPB_SITE) {
    const int rank = opb_rank();
    this->meet(in, file, line);
    for (int item = Items - 1; item > 0; --item) out[item] = operation(in[item], in[item - 1]);
    out[0] = rank ? operation(in[0], this->storage_.last[rank - 1]) : in[0];
  }
  template <int Items, class Out, class Operation>
  OPB_CONVERGENT void SubtractRight(T (&in)[Items], Out (&out)[Items], Operation operation, OPB_SITE) {
    const int rank = opb_rank();
    this->meet(in, file, line);
    const T own = in[Items - 1];
    for (int item = 0; item < Items - 1; ++item) out[item] = operation(in[item], in[item + 1]);
    out[Items - 1] = rank < X * Y * Z - 1 ? operation(own, this->storage_.first[rank + 1]) : own;
  }
};

template <class T, int Items, class From>
static inline void LoadDirectBlocked(int rank, From from, T (&items)[Items]) {
  for (int item = 0; item < Items; ++item) items[item] = from[rank * Items + item];
}
template <int Threads, class T, int Items, class From>
static inline void LoadDirectStriped(int rank, From from, T (&items)[Items]) {
  for (int item = 0; item < Items; ++item) items[item] = from[item * Threads + rank];
}
template <class T, int Items, class To>
static inline void StoreDirectBlocked(int rank, To to, T (&items)[Items]) {
  for (int item = 0; item < Items; ++item) to[rank * Items + item] = items[item];
}
template <int Threads, class T, int Items, class To>
static inline void StoreDirectStriped(int rank, To to, T (&items)[Items]) {
  for (int item = 0; item < Items; ++item) to[item * Threads + rank] = items[item];
}
template <int Threads, class T, int Items, class To>
static inline void StoreDirectStriped(int rank, To to, T (&items)[Items], int valid) {
  for (int item = 0; item < Items; ++item) {
    if (item * Threads + rank < valid) to[item * Threads + rank] = items[item];
  }
}

}  // namespace cub
