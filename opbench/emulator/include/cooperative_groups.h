// Implements cooperative groups: grid, cluster, block, tiles of a warp or of several warps, and coalesced threads.
#pragma once
#include "opbench_cpu/lanes.hpp"

namespace cooperative_groups {

class thread_block : public opb_block {
 public:
  static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned num_threads() { return size(); }
  static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
  // Arriving orders nothing by itself here: the barrier is where the threads wait.
  struct arrival_token {};
  arrival_token barrier_arrive() const { return {}; }
  OPB_CONVERGENT void barrier_wait(arrival_token, OPB_SITE) const { opb_syncthreads(file, line); }
  OPB_CONVERGENT void barrier_wait(OPB_SITE) const { opb_syncthreads(file, line); }
};
template <unsigned Threads>
struct block_tile_memory {
  unsigned unused;
};
static inline thread_block this_thread_block() { return {}; }
template <unsigned Threads>
static inline thread_block this_thread_block(block_tile_memory<Threads>&) {
  return {};
}

// Blocks of a cluster access each other's shared memory by generic pointers to ordinary memory.
class cluster_group {
 public:
  static void sync() { barrier_arrive(), barrier_wait(); }
  static void barrier_arrive() { ::opb_ptx::cluster_arrive(); }
  static void barrier_wait() { ::opb_ptx::cluster_wait(); }
  static unsigned block_rank() { return opb_cluster_rank(); }
  static dim3 block_index() { return opb_cluster_place(0); }
  static dim3 dim_blocks() { return opb_cluster_place(1); }
  static unsigned num_blocks() { return dim_blocks().x * dim_blocks().y * dim_blocks().z; }
  static unsigned num_threads() { return num_blocks() * thread_block::size(); }
  static unsigned size() { return num_threads(); }
  static unsigned thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  template <class T>
  static T* map_shared_rank(T* pointer, unsigned rank) {
    return (T*)opb_shared_pointer((opb_shared_address(pointer) & 0xffffffu) | (rank + 1) << 24);
  }
};
static inline cluster_group this_cluster() { return {}; }

// The grid of a cooperative launch, which the runtime runs like one cluster.
class grid_group {
 public:
  static void sync(OPB_SITE) {
    dim3 together = opb_cluster_place(1);
    if (together.x * together.y * together.z != num_blocks()) {
      opb_trap("grid.sync() in a launch that is not cooperative: write cooperative = true in the header's launch", file,
               line);
    }
    ::opb_ptx::cluster_arrive(), ::opb_ptx::cluster_wait();
  }
  struct arrival_token {};
  static arrival_token barrier_arrive() { return {}; }
  static void barrier_wait(arrival_token, OPB_SITE) { sync(file, line); }
  static bool is_valid() {
    dim3 together = opb_cluster_place(1);
    return together.x * together.y * together.z == num_blocks();
  }
  static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() {
    return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::size(); }
  static unsigned long long size() { return num_threads(); }
  static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  static dim3 group_dim() { return gridDim; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 block_index() { return blockIdx; }
};
static inline grid_group this_grid() { return {}; }

class coalesced_group : public opb_lanes {
 public:
  using opb_lanes::opb_lanes;
};
OPB_CONVERGENT static inline coalesced_group coalesced_threads(OPB_SITE) {
  return coalesced_group(__activemask(file, line));
}

// A tile of several warps synchronises by a named barrier, numbered from 15 down, and exchanges values by pointers.
template <unsigned Size>
class opb_large_tile {
 public:
  void sync() const { ::opb_ptx::named_barrier(15 - thread_block::thread_rank() / Size, Size); }
  static unsigned thread_rank() { return thread_block::thread_rank() % Size; }
  template <class T>
  OPB_CONVERGENT T shfl(const T& value, unsigned rank, OPB_SITE) const {
    T result;
    opb_take(&result, tell(&value, file, line), rank % Size, sizeof(T));
    sync();
    return result;
  }
  OPB_CONVERGENT int any(int predicate, OPB_SITE) const { return count(predicate != 0, file, line) > 0; }
  OPB_CONVERGENT int all(int predicate, OPB_SITE) const { return count(predicate != 0, file, line) == Size; }

 private:
  // The address of each thread's value; valid until the next barrier of the tile.
  OPB_CONVERGENT void* const* tell(const void* value, const char* file, unsigned line) const {
    void* const* pointers = opb_share_pointers(const_cast<void*>(value), file, line);
    sync();
    return pointers - thread_rank() / 32 * 32;
  }
  OPB_UNSEEN static void opb_take(void* to, void* const* pointers, unsigned rank, size_t bytes) {
    __builtin_memcpy(to, pointers[rank], bytes);
  }
  OPB_UNSEEN static unsigned opb_sum(void* const* pointers) {
    unsigned sum = 0;
    for (unsigned rank = 0; rank < Size; ++rank) sum += *(const unsigned*)pointers[rank];
    return sum;
  }
  OPB_CONVERGENT unsigned count(unsigned one, const char* file, unsigned line) const {
    const unsigned sum = opb_sum(tell(&one, file, line));
    sync();
    return sum;
  }
};

template <unsigned Size, class Parent = void>
class thread_block_tile : public opb_choose<(Size > 32), opb_large_tile<Size>, opb_lanes> {
  static_assert(Size && Size <= 1024 && !(Size & (Size - 1)), "a tile has 1, 2, 4, ... 1024 threads");
  static constexpr unsigned narrow = Size > 32 ? 32 : Size;
  template <unsigned Whole, class Above>
  static constexpr unsigned of(thread_block_tile<Whole, Above>*) {
    return Whole;
  }
  static unsigned of(...) { return thread_block::size(); }
  template <class Base>
  static Base made(Base*, opb_lanes*) {
    return Base((narrow == 32 ? ~0u : (1u << narrow % 32) - 1) << (opb_lane_id() & ~(narrow - 1)));
  }
  template <class Base>
  static Base made(Base*, void*) {
    return Base();
  }
  using Base = opb_choose<(Size > 32), opb_large_tile<Size>, opb_lanes>;

 public:
  thread_block_tile() : Base(made((Base*)nullptr, (Base*)nullptr)) {}
  template <class Other>
  thread_block_tile(const thread_block_tile<Size, Other>&) : thread_block_tile() {}
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() % of((Parent*)nullptr) / Size; }
  static unsigned meta_group_size() { return (of((Parent*)nullptr) + Size - 1) / Size; }
};

template <unsigned Size, class Parent>
static inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
  return {};
}
// CUDA C++ Programming Guide: the size of the parent group must be evenly divisible by that of its tiles.
template <unsigned Size>
static inline thread_block_tile<Size, thread_block> tiled_partition(const thread_block&, OPB_SITE) {
  opb_require_whole_tiles(Size, file, line);
  return {};
}

// A group whose kind is known only at run time: the block, or lanes of a warp.
class thread_group {
 public:
  thread_group(const thread_block&) : lanes_(0) {}
  thread_group(const opb_lanes& lanes) : lanes_(lanes.opb_mask()) {}
  OPB_CONVERGENT void sync(OPB_SITE) const {
    if (lanes_) return opb_lanes(lanes_).sync(file, line);
    opb_syncthreads(file, line);
  }
  unsigned size() const { return lanes_ ? opb_lanes(lanes_).size() : thread_block::size(); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return lanes_ ? opb_lanes(lanes_).thread_rank() : thread_block::thread_rank(); }
  bool is_valid() const { return true; }
  unsigned opb_mask() const { return lanes_; }

 private:
  unsigned lanes_;
};

static inline thread_group tiled_partition(const thread_group& parent, unsigned size, OPB_SITE) {
  if (size == 0 || size > 32 || size & (size - 1)) {
    opb_trap("tiled_partition(group, size): 1, 2, 4, 8, 16 or 32 threads are allowed", file, line);
  }
  if (!parent.opb_mask()) opb_require_whole_tiles(size, file, line);
  unsigned mask = (size == 32 ? ~0u : (1u << size) - 1) << (opb_lane_id() & ~(size - 1));
  return opb_lanes(parent.opb_mask() ? mask & parent.opb_mask() : mask);
}
static inline coalesced_group tiled_partition(const coalesced_group& parent, unsigned size) {
  unsigned rest = parent.opb_mask(), mask = 0, first = parent.thread_rank() / size * size;
  for (unsigned rank = 0; rest; ++rank, rest &= rest - 1) {
    if (rank >= first && rank < first + size) mask |= rest & -rest;
  }
  return coalesced_group(mask);
}
template <class Group, class Label>
OPB_CONVERGENT static inline coalesced_group labeled_partition(const Group& group, Label label, OPB_SITE) {
  return coalesced_group(__match_any_sync(group.opb_mask(), label, file, line));
}
template <class Group>
OPB_CONVERGENT static inline coalesced_group binary_partition(const Group& group, bool side, OPB_SITE) {
  return coalesced_group(__match_any_sync(group.opb_mask(), (int)side, file, line));
}

template <class Group>
OPB_CONVERGENT static inline void sync(const Group& group, OPB_SITE) {
  opb_meet(group, file, line);
}
template <class Group>
static inline dim3 group_dim(const Group& group) {
  return group.group_dim();
}
template <class Group>
static inline unsigned thread_rank(const Group& group) {
  return group.thread_rank();
}

}  // namespace cooperative_groups
#include "cooperative_groups/reduce.h"
#include "cooperative_groups/memcpy_async.h"
