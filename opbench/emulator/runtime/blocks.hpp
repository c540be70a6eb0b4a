// Prepares a worker (stacks and the module's shared memory on its thread) and runs blocks one after another.
#pragma once
#include <link.h>
#include <sys/mman.h>

#include "memory.hpp"
#include "scheduler.hpp"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

// Guards by mprotect split the mapping; the kernel allows 65,530 mappings, so a process with many workers stops early.
static uint32_t guards_left = 16000;

static void install_guard(char* page) {
  if (madvise(page, kPageBytes, MADV_GUARD_INSTALL) == 0) return;
  if (__atomic_load_n(&guards_left, __ATOMIC_RELAXED) == 0) return;
  __atomic_fetch_sub(&guards_left, 1, __ATOMIC_RELAXED);
  mprotect(page, kPageBytes, PROT_NONE);
}

static bool make_stacks(Worker* worker, uint32_t count) {
  if (count <= worker->stack_count) return true;
  if (worker->stacks) munmap(worker->stacks, (size_t)worker->stack_count * kStackBytes);
  worker->stack_count = 0;
  worker->stacks = nullptr;
  worker->stacks = (char*)map_zeros((size_t)count * kStackBytes);
  if (!worker->stacks) return false;
  worker->stack_count = count;
  for (uint32_t thread = 0; thread < count; ++thread) install_guard(stack_of(worker, thread));
  return true;
}

struct ModuleSearch {
  uintptr_t code, base, end;
  char* thread_local_data;
  size_t thread_local_bytes;
};

static int find_module(struct dl_phdr_info* info, size_t, void* data) {
  ModuleSearch* search = (ModuleSearch*)data;
  bool inside = false;
  uintptr_t end = 0;
  for (int index = 0; index < info->dlpi_phnum; ++index) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[index];
    uintptr_t first = info->dlpi_addr + header->p_vaddr, last = first + header->p_memsz;
    if (header->p_type != PT_LOAD) continue;
    if (last > end) end = last;
    if (search->code >= first && search->code < last) inside = true;
  }
  if (!inside) return 0;
  search->base = info->dlpi_addr;
  search->end = end;
  for (int index = 0; index < info->dlpi_phnum; ++index) {
    if (info->dlpi_phdr[index].p_type != PT_TLS) continue;
    search->thread_local_data = (char*)info->dlpi_tls_data;
    search->thread_local_bytes = info->dlpi_phdr[index].p_memsz;
  }
  return 1;
}

// Tests for memory first: the C library ends the process if it has none for a thread's copy of a module's shared
// memory.
static bool has_room_for_shared(const Launch* launch) {
  ModuleSearch search = {(uintptr_t)launch->entry, 0, 0, nullptr, 0};
  dl_iterate_phdr(find_module, &search);
  void* probe = allocate_zeros(search.thread_local_bytes + kPageBytes);
  free(probe);
  return probe;
}

bool prepare(Worker* worker, Launch* launch) {
  if (!worker->team) worker->team = make_team(worker);
  if (!worker->team) return false;
  worker->trace = nullptr;  // accesses before the first block are not the kernel's
  set_access_filter(worker);
  worker->launch = launch;
  worker->aborted = false;
  worker->threads = launch->block.x * launch->block.y * launch->block.z;
  worker->warps = (worker->threads + kLanes - 1) / kLanes;
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    uint32_t row = thread / launch->block.x;
    worker->coordinates[thread] = {thread % launch->block.x, row % launch->block.y, row / launch->block.y};
  }
  opb_current.block_size = launch->block;
  opb_current.grid_size = launch->grid;
  if (worker->shared_owner != (void*)launch->touch_shared) {
    if (!has_room_for_shared(launch)) return false;
    launch->touch_shared();  // thread-local storage of a module appears at its first use
    ModuleSearch search = {(uintptr_t)launch->entry, 0, 0, nullptr, 0};
    dl_iterate_phdr(find_module, &search);
    worker->shared_base = search.thread_local_data;
    worker->shared_bytes = search.thread_local_bytes;
    worker->dynamic_base = launch->dynamic_shared();
    worker->shared_owner = (void*)launch->touch_shared;
  }
  if (!make_stacks(worker, worker->threads)) return false;
  worker->trace = trace_of(worker);
  if (worker->trace) trace_launch(worker);
  set_access_filter(worker);
  return !memory_is_short();
}

// Fills shared memory with NaN in every float format, so that a read of uninitialised memory shows in the result.
static void poison_shared(Worker* worker) {
  size_t before = worker->dynamic_base - worker->shared_base;
  size_t after = before + kDynamicSharedBytes + kSharedCanaryBytes;
  memset(worker->shared_base, 0xFF, before);
  memset(worker->dynamic_base, 0xFF, worker->launch->shared_bytes + kSharedCanaryBytes);
  if (after < worker->shared_bytes) memset(worker->shared_base + after, 0xFF, worker->shared_bytes - after);
}

static void check_shared_canary(Worker* worker) {
  const unsigned char* canary = (const unsigned char*)worker->dynamic_base + worker->launch->shared_bytes;
  // The canary equals itself moved by one byte, so all bytes equal the first.
  if (canary[0] == 0xFF && memcmp(canary, canary + 1, kSharedCanaryBytes - 1) == 0) return;
  for (size_t offset = 0; offset < kSharedCanaryBytes; ++offset) {
    if (canary[offset] == 0xFF) continue;
    report_fault(worker, kReportSharedOverrun, 0, worker->launch->shared_bytes + offset, "");
    return;
  }
}

void run_block(Worker* worker, uint64_t position) {
  const Launch* launch = worker->launch;
  uint64_t index = block_at(launch, position);
  uint64_t row = index / launch->grid.x;
  opb_current.block = {(uint32_t)(index % launch->grid.x), (uint32_t)(row % launch->grid.y),
                       (uint32_t)(row / launch->grid.y)};
  poison_shared(worker);
  worker->fibers = false;
  ++worker->blocks_begun;
  worker->reduction[OPB_BARRIER_COUNT] = 0;
  worker->reduction[OPB_BARRIER_AND] = 1;
  worker->reduction[OPB_BARRIER_OR] = 0;
  if (worker->trace) trace_block_start(worker, index, position);
  if (memory_is_short()) {
    worker->aborted = true;
  } else {
    context_make(&worker->first_context, worker->stacks, kStackBytes, direct_entry);
    context_switch(&worker->main_context, &worker->first_context);
  }
  if (worker->trace) {
    trace_block_end(worker);
  } else {
    check_shared_canary(worker);
  }
  if (worker->copies_in_flight) forget_copies(worker);
  // Work in flight when a sample's time is over is not the kernel's mistake.
  const bool aborted = worker->aborted;
  worker->aborted |= was_stopped_early(launch);
  end_events(worker);
  worker->aborted = aborted;
}

void run_blocks(Worker* worker, Launch* launch) {
  if (!prepare(worker, launch)) {
    __atomic_store_n(&launch->aborted, 1, __ATOMIC_RELAXED);
    return;
  }
  const uint64_t size = cluster_size(launch), all = launch->block_count / size;
  const uint64_t clusters = launch->sample_count ? launch->sample_count : all;
  uint64_t chunk = clusters / (64 * (uint64_t)launch->workers);
  if (chunk == 0) chunk = 1;
  for (;;) {
    uint64_t first = __atomic_fetch_add(&launch->next_block, chunk, __ATOMIC_RELAXED);
    if (first >= clusters) return;
    for (uint64_t step = first; step < first + chunk && step < clusters; ++step) {
      if (__atomic_load_n(&launch->aborted, __ATOMIC_RELAXED)) return;
      launch->sample = launch->sample_count ? (uint32_t)step : 0;
      run_cluster(worker, (launch->sample_count ? launch->samples[step] : step) * size);
      if (worker->aborted || memory_is_short()) __atomic_store_n(&launch->aborted, 1, __ATOMIC_RELAXED);
    }
  }
}
