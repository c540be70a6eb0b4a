// Defines the common part of tiles of a warp and coalesced groups: a mask of lanes and the ranks within it.
#pragma once

namespace cooperative_groups {

// Shuffles a value of any size in pieces of 8 bytes.
template <class T>
OPB_CONVERGENT static inline T opb_shuffle_whole(unsigned mask, const T& value, int lane, const char* file,
                                                 unsigned line) {
  static_assert(__is_trivially_copyable(T), "a shuffle moves what may be copied byte by byte");
  unsigned long long words[(sizeof(T) + 7) / 8] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (unsigned long long& word : words) word = opb_shuffle(mask, word, lane, file, line);
  T result;
  __builtin_memcpy(&result, words, sizeof(T));
  return result;
}

class opb_block {
 public:
  OPB_CONVERGENT void sync(OPB_SITE) const { opb_syncthreads(file, line); }
};

class opb_lanes {
 public:
  explicit opb_lanes(unsigned mask) : mask_(mask) {}
  OPB_CONVERGENT void sync(OPB_SITE) const { opb_warp(mask_, OPB_WARP_SYNC, 0, 0, file, line); }
  unsigned size() const { return (unsigned)__popc(mask_); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return (unsigned)__popc(mask_ & ((1u << opb_lane_id()) - 1)); }
  unsigned opb_mask() const { return mask_; }

  template <class T>
  OPB_CONVERGENT T shfl(T value, unsigned rank, OPB_SITE) const {
    return opb_shuffle_whole(mask_, value, lane_of(rank % size()), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_up(T value, unsigned delta, OPB_SITE) const {
    unsigned rank = thread_rank();
    return opb_shuffle_whole(mask_, value, lane_of(rank < delta ? rank : rank - delta), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_down(T value, unsigned delta, OPB_SITE) const {
    unsigned rank = thread_rank();
    return opb_shuffle_whole(mask_, value, lane_of(rank + delta >= size() ? rank : rank + delta), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_xor(T value, unsigned lane_mask, OPB_SITE) const {
    unsigned rank = thread_rank(), other = rank ^ lane_mask;
    return opb_shuffle_whole(mask_, value, lane_of(other >= size() ? rank : other), file, line);
  }
  OPB_CONVERGENT unsigned ballot(int predicate, OPB_SITE) const {
    return ranks_of((unsigned)opb_warp(mask_, OPB_WARP_BALLOT, predicate != 0, 0, file, line));
  }
  OPB_CONVERGENT int any(int predicate, OPB_SITE) const { return ballot(predicate, file, line) != 0; }
  OPB_CONVERGENT int all(int predicate, OPB_SITE) const { return ballot(!predicate, file, line) == 0; }
  template <class T>
  OPB_CONVERGENT unsigned match_any(T value, OPB_SITE) const {
    return ranks_of(__match_any_sync(mask_, value, file, line));
  }
  template <class T>
  OPB_CONVERGENT unsigned match_all(T value, int& equal, OPB_SITE) const {
    return ranks_of(__match_all_sync(mask_, value, &equal, file, line));
  }

 private:
  unsigned ranks_of(unsigned lanes) const {
    unsigned ranks = 0, rest = mask_;
    for (unsigned rank = 0; rest; ++rank, rest &= rest - 1) ranks |= (lanes >> __builtin_ctz(rest) & 1u) << rank;
    return ranks;
  }
  int lane_of(unsigned rank) const {
    unsigned rest = mask_;
    for (; rank > 0; --rank) rest &= rest - 1;
    return __builtin_ctz(rest);
  }
  unsigned mask_;
};

// For groups that store the source position of their call, and for those that need none.
template <class Group>
OPB_CONVERGENT static inline auto opb_meet(const Group& group, const char* file, unsigned line)
    -> decltype(group.sync(file, line)) {
  return group.sync(file, line);
}
template <class Group, class... None>
OPB_CONVERGENT static inline auto opb_meet(const Group& group, const char*, unsigned, None...)
    -> decltype(group.sync()) {
  return group.sync();
}

}  // namespace cooperative_groups
