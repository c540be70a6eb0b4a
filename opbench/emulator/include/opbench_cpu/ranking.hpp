// Implements CUB's sorts of a warp, and radix ranks and shuffles of a block, in the simplest way.
#pragma once
#include "sorting.hpp"

namespace cub {

// Sorts items in a blocked arrangement over the threads of a logical warp.
template <class Key, int Items, int Threads = 32, class Value = NullType, int = 1>
class WarpMergeSort {
  static_assert(Threads >= 1 && Threads <= 32 && !(Threads & (Threads - 1)), "a part of a warp has 1, 2, 4 ... 32 threads");

 public:
  struct TempStorage {
    opb_items<Key, Threads * Items> keys;
    opb_items<Value, Threads * Items> values;
  };
  explicit WarpMergeSort(TempStorage& storage) : storage_(storage), rank_((int)(opb_lane_id() % Threads)) {}
  int get_linear_tid() const { return rank_; }
  unsigned get_member_mask() const {
    return (Threads == 32 ? ~0u : (1u << Threads % 32) - 1) << (opb_lane_id() / Threads * Threads);
  }
#define OPB_SORT(NAME)                                                                                             \
  template <class Less>                                                                                            \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Less less, OPB_SITE) {                                              \
    sorted(keys, nullptr, less, Threads* Items, file, line);                                                       \
  }                                                                                                                \
  template <class Less>                                                                                            \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Less less, int valid, Key rest, OPB_SITE) {                         \
    replace(keys, valid, rest);                                                                                    \
    sorted(keys, nullptr, less, valid, file, line);                                                                \
  }                                                                                                                \
  template <class Less>                                                                                            \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Value (&values)[Items], Less less, OPB_SITE) {                      \
    sorted(keys, values, less, Threads* Items, file, line);                                                        \
  }                                                                                                                \
  template <class Less>                                                                                            \
  OPB_CONVERGENT void NAME(Key (&keys)[Items], Value (&values)[Items], Less less, int valid, Key rest, OPB_SITE) { \
    replace(keys, valid, rest);                                                                                    \
    sorted(keys, values, less, valid, file, line);                                                                 \
  }
  OPB_SORT(Sort)
  OPB_SORT(StableSort)
#undef OPB_SORT

 private:
  void replace(Key (&keys)[Items], int valid, Key rest) {
    for (int item = 0; item < Items; ++item) {
      if (rank_ * Items + item >= valid) keys[item] = rest;
    }
  }
  template <class Less>
  OPB_CONVERGENT void sorted(Key (&keys)[Items], Value* values, Less less, int valid, const char* file, unsigned line) {
    const unsigned mask = get_member_mask();
    for (int item = 0; item < Items; ++item) {
      storage_.keys.values[rank_ * Items + item] = keys[item];
      if constexpr (sizeof(Value) > sizeof(NullType)) storage_.values.values[rank_ * Items + item] = values[item];
    }
    opb_warp(mask, OPB_WARP_SYNC, 0, 0, file, line);
    if (rank_ == 0) opb_sort(storage_.keys.values, storage_.values.values, valid, less);
    opb_warp(mask, OPB_WARP_SYNC, 0, 0, file, line);
    for (int item = 0; item < Items; ++item) {
      keys[item] = storage_.keys.values[rank_ * Items + item];
      if constexpr (sizeof(Value) > sizeof(NullType)) values[item] = storage_.values.values[rank_ * Items + item];
    }
  }
  TempStorage& storage_;
  int rank_;
};

// Returns a range of the bits of a key as an unsigned number.
template <class Key>
struct BFEDigitExtractor {
  unsigned first, count;
  explicit BFEDigitExtractor(unsigned first = 0, unsigned count = 0) : first(first), count(count) {}
  template <class Bits>
  unsigned Digit(Bits key) const {
    return (unsigned)((unsigned long long)key >> first & ((1ull << count) - 1));
  }
};
template <class Key>
struct ShiftDigitExtractor : BFEDigitExtractor<Key> {
  using BFEDigitExtractor<Key>::BFEDigitExtractor;
};

// Computes a rank for each key by a digit; equal digits keep the order of threads and items.
template <int X, int Bits, bool Descending, bool = true, int = 0, int = 0, int Y = 1, int Z = 1>
class BlockRadixRank {
  static constexpr int threads = X * Y * Z, digits = 1 << Bits;

 public:
  static constexpr int BINS_TRACKED_PER_THREAD = (digits + threads - 1) / threads;
  struct TempStorage {
    unsigned short counts[digits][threads], starts[digits];
  };
  explicit BlockRadixRank(TempStorage& storage) : storage_(storage) {}
  template <class Key, int Items, class Extractor>
  OPB_CONVERGENT void RankKeys(Key (&keys)[Items], int (&ranks)[Items], Extractor extractor, OPB_SITE) {
    const int rank = opb_rank();
    for (int digit = 0; digit < digits; ++digit) storage_.counts[digit][rank] = 0;
    for (int digit = rank; digit < digits; digit += threads) storage_.starts[digit] = 0;
    for (int item = 0; item < Items; ++item) ranks[item] = storage_.counts[place(extractor.Digit(keys[item]))][rank]++;
    opb_syncthreads(file, line);
    if (rank == 0) add_up();
    opb_syncthreads(file, line);
    for (int item = 0; item < Items; ++item) ranks[item] += storage_.counts[place(extractor.Digit(keys[item]))][rank];
  }
  template <class Key, int Items, class Extractor>
  OPB_CONVERGENT void RankKeys(Key (&keys)[Items], int (&ranks)[Items], Extractor extractor,
                               int (&before)[BINS_TRACKED_PER_THREAD], OPB_SITE) {
    RankKeys(keys, ranks, extractor, file, line);
    for (int bin = 0; bin < BINS_TRACKED_PER_THREAD; ++bin) {
      const int digit = opb_rank() * BINS_TRACKED_PER_THREAD + bin;
      if (digit < digits) before[bin] = storage_.starts[place(digit)];
    }
  }

 private:
  static unsigned place(unsigned digit) { return Descending ? digits - 1 - digit : digit; }
  OPB_UNSEEN void add_up() {  // by one thread while all others wait
    unsigned short sum = 0;
    for (int digit = 0; digit < digits; ++digit) {
      storage_.starts[digit] = sum;
      for (int thread = 0; thread < threads; ++thread) {
        const unsigned short count = storage_.counts[digit][thread];
        storage_.counts[digit][thread] = sum;
        sum += count;
      }
    }
  }
  TempStorage& storage_;
};

// Reads the values of other threads by rank; outside of the block the output does not change.
template <class T, int X, int Y = 1, int Z = 1>
class BlockShuffle {
  static constexpr int threads = X * Y * Z;

 public:
  using TempStorage = opb_storage<T, threads>;
  explicit BlockShuffle(TempStorage& storage) : storage_(storage) {}
  OPB_CONVERGENT void Offset(T input, T& output, int distance = 1, OPB_SITE) {
    const int other = opb_rank() + distance;
    tell(input, file, line);
    if (other >= 0 && other < threads) output = storage_.values[other];
  }
  OPB_CONVERGENT void Rotate(T input, T& output, unsigned distance = 1, OPB_SITE) {
    tell(input, file, line);
    output = storage_.values[(opb_rank() + distance) % threads];
  }
  template <int Items>
  OPB_CONVERGENT void Up(T (&input)[Items], T (&before)[Items], OPB_SITE) {
    tell(input[Items - 1], file, line);
    for (int item = Items - 1; item > 0; --item) before[item] = input[item - 1];
    if (opb_rank() > 0) before[0] = storage_.values[opb_rank() - 1];
  }
  template <int Items>
  OPB_CONVERGENT void Up(T (&input)[Items], T (&before)[Items], T& last, OPB_SITE) {
    Up(input, before, file, line);
    last = storage_.values[threads - 1];
  }
  template <int Items>
  OPB_CONVERGENT void Down(T (&input)[Items], T (&behind)[Items], OPB_SITE) {
    tell(input[0], file, line);
    for (int item = 0; item < Items - 1; ++item) behind[item] = input[item + 1];
    if (opb_rank() < threads - 1) behind[Items - 1] = storage_.values[opb_rank() + 1];
  }
  template <int Items>
  OPB_CONVERGENT void Down(T (&input)[Items], T (&behind)[Items], T& first, OPB_SITE) {
    Down(input, behind, file, line);
    first = storage_.values[0];
  }

 private:
  OPB_CONVERGENT void tell(const T& input, const char* file, unsigned line) {
    storage_.values[opb_rank()] = input;
    opb_syncthreads(file, line);
  }
  TempStorage& storage_;
};

}  // namespace cub
