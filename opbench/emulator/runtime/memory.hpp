// Allocates the runtime's memory. If the system refuses a request, the launch ends and Python raises an environment
// fault, because a check without that memory would miss faults of the kernel.
#pragma once
#include <stdlib.h>
#include <sys/mman.h>

#include "worker.hpp"

static uint64_t refused_bytes;        // of the first refused request since Python's last query; 0: none
static uint64_t requests_to_refusal;  // for tests: the number of the request to refuse, counted from now; 0: none

static inline bool memory_is_short() { return __atomic_load_n(&refused_bytes, __ATOMIC_RELAXED) != 0; }

// For tests: returns whether to refuse this request.
static inline bool is_to_be_refused() {
  if (__builtin_expect(!__atomic_load_n(&requests_to_refusal, __ATOMIC_RELAXED), 1)) return false;
  return __atomic_sub_fetch(&requests_to_refusal, 1, __ATOMIC_RELAXED) == 0;
}

// Ends the launch if a CUDA thread made the request. Otherwise returns null, and the caller continues without the
// memory; Python raises the error after the launch.
static void* refuse(size_t bytes) {
  uint64_t none = 0;
  __atomic_compare_exchange_n(&refused_bytes, &none, bytes ? bytes : 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  Worker* worker = opb_worker;
  if (!worker) return nullptr;
  worker->aborted = true;
  uintptr_t place = (uintptr_t)__builtin_frame_address(0) - (uintptr_t)worker->stacks;
  if (place < (size_t)worker->stack_count * kStackBytes) abandon_launch(worker);
  return nullptr;
}

static void* allocate_zeros(size_t bytes) {
  void* memory = is_to_be_refused() ? nullptr : calloc(1, bytes);
  return memory ? memory : refuse(bytes);
}

// If the system refuses, the old memory stays allocated and unchanged.
static void* reallocate(void* old, size_t bytes) {
  void* memory = is_to_be_refused() ? nullptr : realloc(old, bytes);
  return memory ? memory : refuse(bytes);
}

// Maps whole pages, which take memory only once they are written.
static void* map_zeros(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = is_to_be_refused() ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? refuse(bytes) : memory;
}

// Maps memory of which nearly all will be written: in huge pages if the system grants them, because faults for small
// pages take a large part of a trace's time.
static void* map_dense_zeros(size_t bytes) {
  void* memory = map_zeros(bytes);
#ifdef MADV_HUGEPAGE
  if (memory) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return memory;
}
