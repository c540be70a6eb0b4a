// Cooperative groups of one block: thread_block, tiles of a warp, and the lanes that happen to run together.
#pragma once

namespace cooperative_groups {

class thread_block {
 public:
  OPB_CONVERGENT void sync(OPB_SITE) const { opb_syncthreads(file, line); }
  unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  dim3 group_index() const { return blockIdx; }
  dim3 thread_index() const { return threadIdx; }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
};
static inline thread_block this_thread_block() { return {}; }

// Blocks that read each other's shared memory, which is ordinary memory to a generic pointer.
class cluster_group {
 public:
  void sync() const { barrier_arrive(), barrier_wait(); }
  void barrier_arrive() const { ::opb_ptx::cluster_arrive(); }
  void barrier_wait() const { ::opb_ptx::cluster_wait(); }
  unsigned block_rank() const { return opb_cluster_rank(); }
  dim3 block_index() const { return opb_cluster_place(0); }
  dim3 dim_blocks() const { return opb_cluster_place(1); }
  unsigned num_blocks() const { return dim_blocks().x * dim_blocks().y * dim_blocks().z; }
  unsigned num_threads() const { return num_blocks() * this_thread_block().size(); }
  unsigned thread_rank() const { return block_rank() * this_thread_block().size() + this_thread_block().thread_rank(); }
  template <class T>
  T* map_shared_rank(T* pointer, unsigned rank) const {
    return (T*)opb_shared_pointer((opb_shared_address(pointer) & 0xffffffu) | (rank + 1) << 24);
  }
};
static inline cluster_group this_cluster() { return {}; }

// What tiles and coalesced groups share: a mask of lanes, and ranks counted within it.
class opb_lanes {
 public:
  explicit opb_lanes(unsigned mask) : mask_(mask) {}
  OPB_CONVERGENT void sync(OPB_SITE) const { opb_warp(mask_, OPB_WARP_SYNC, 0, 0, file, line); }
  unsigned size() const { return (unsigned)__popc(mask_); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return (unsigned)__popc(mask_ & ((1u << opb_lane_id()) - 1)); }

  template <class T>
  OPB_CONVERGENT T shfl(T value, unsigned rank, OPB_SITE) const {
    return opb_shuffle(mask_, value, lane_of(rank % size()), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_up(T value, unsigned delta, OPB_SITE) const {
    unsigned rank = thread_rank();
    return opb_shuffle(mask_, value, lane_of(rank < delta ? rank : rank - delta), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_down(T value, unsigned delta, OPB_SITE) const {
    unsigned rank = thread_rank();
    return opb_shuffle(mask_, value, lane_of(rank + delta >= size() ? rank : rank + delta), file, line);
  }
  template <class T>
  OPB_CONVERGENT T shfl_xor(T value, unsigned lane_mask, OPB_SITE) const {
    unsigned rank = thread_rank(), other = rank ^ lane_mask;
    return opb_shuffle(mask_, value, lane_of(other >= size() ? rank : other), file, line);
  }
  OPB_CONVERGENT unsigned ballot(int predicate, OPB_SITE) const {
    unsigned lanes = (unsigned)opb_warp(mask_, OPB_WARP_BALLOT, predicate != 0, 0, file, line), ranks = 0;
    for (unsigned rank = 0; rank < size(); ++rank) ranks |= (lanes >> lane_of(rank) & 1u) << rank;
    return ranks;
  }
  OPB_CONVERGENT int any(int predicate, OPB_SITE) const { return ballot(predicate, file, line) != 0; }
  OPB_CONVERGENT int all(int predicate, OPB_SITE) const { return ballot(!predicate, file, line) == 0; }

 private:
  int lane_of(unsigned rank) const {
    unsigned rest = mask_;
    for (; rank > 0; --rank) rest &= rest - 1;
    return __builtin_ctz(rest);
  }
  unsigned mask_;
};

template <unsigned Size, class Parent = void>
class thread_block_tile : public opb_lanes {
  static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads");

 public:
  thread_block_tile() : opb_lanes((Size == 32 ? ~0u : (1u << Size % 32) - 1) << (opb_lane_id() & ~(Size - 1))) {}
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  unsigned meta_group_rank() const { return this_thread_block().thread_rank() / Size; }
  unsigned meta_group_size() const { return (this_thread_block().size() + Size - 1) / Size; }
};

template <unsigned Size, class Parent>
static inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
  return {};
}

class coalesced_group : public opb_lanes {
 public:
  using opb_lanes::opb_lanes;
};
OPB_CONVERGENT static inline coalesced_group coalesced_threads(OPB_SITE) {
  return coalesced_group(__activemask(file, line));
}

template <class T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};

template <class Group, class T, class Operation>
OPB_CONVERGENT static inline T reduce(const Group& group, T value, Operation operation, OPB_SITE) {
  T result = group.shfl(value, 0, file, line);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, rank, file, line));
  return result;
}

template <class Group>
OPB_CONVERGENT static inline void sync(const Group& group, OPB_SITE) {
  group.sync(file, line);
}

}  // namespace cooperative_groups
