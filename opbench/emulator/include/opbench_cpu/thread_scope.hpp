// Defines the common parts of <cuda/barrier>, <cuda/pipeline> and <cuda/atomic>.
#pragma once
#include "../cooperative_groups.h"

namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

template <unsigned long Alignment>
struct aligned_size_t {
  static constexpr unsigned long align = Alignment;
  unsigned long value;
  explicit constexpr aligned_size_t(unsigned long size) : value(size) {}
  constexpr operator unsigned long() const { return value; }
};
struct opb_one {  // a group of the calling thread alone
  static constexpr unsigned size() { return 1; }
  static constexpr unsigned thread_rank() { return 0; }
};
}  // namespace cuda
