// Defines the functions that a traced module calls at each access, call and basic block, and opens and closes traces.
//
// The module is compiled with -fsanitize=thread and -fsanitize-coverage=trace-pc, but linked with these functions
// instead of libtsan. An access goes to record_access(): bounds (trace.hpp), synchronisation (spins.hpp), races
// (shadow.hpp), and the lane's log for counts (replay.hpp). Python opens a trace, launches, and takes the counts.
#pragma once
#include "products.hpp"
#include "replay.hpp"
#include "spins.hpp"

// `aligned`: whether the compiler, like a GPU, requires the address to be a multiple of the size.
static inline __attribute__((always_inline)) void record_access(const void* pointer, uint32_t bytes, uint32_t access,
                                                                const void* program_counter, bool aligned = true) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return;
  Trace* trace = worker->trace;
  uintptr_t address = (uintptr_t)pointer;
  uint32_t site = site_of(worker, program_counter);
  const Region* region = trace->recent[site % kRecentRegions];
  if (__builtin_expect(address < region->start || address + bytes > region->end, 0)) {
    region = find_region(worker, address, bytes, access, site);
    if (!region) return;
  }
  if (region->space == kLocal) {
    if (__builtin_expect(worker->uses_wgmma, 0)) check_register_access(worker, address, bytes, access, site);
    return;
  }
  bool bypasses_l1 = trace->bypasses_l1;
  trace->bypasses_l1 = false;
  ++trace->totals.accesses;
  if (__builtin_expect(aligned && address & (bytes - 1), 0)) {
    trace_report(worker, kReportMisaligned, site, address, bytes, access, nullptr);
    abandon_launch(worker);  // as a GPU does; the CPU may fault too
  }
  if (__builtin_expect(trace->pending_count, 0) && !trace->in_wider_store) {
    report_pending(worker);
    trace->range_written = 0;
  }
  const bool flag = access == OPB_ACCESS_ATOMIC || trace->is_volatile;
  if (flag) record_flag_access(worker, region, address, bytes, access, site);
  if (access == OPB_ACCESS_STORE) trace->idle = 0;
  trace->plain = address;
  if (region->space == kModule) {  // __device__ and __constant__ variables, which are not counted
    if (access != OPB_ACCESS_LOAD && region->memory && region->memory->constant) {
      return trace_report(worker, kReportConstantStore, site, address, bytes, access, nullptr);
    }
    if (trace->races && region->memory) check_global(worker, trace, region->memory, address, bytes, access, site);
    return;
  }
  if (trace->races) {
    if (region->space == kShared) {
      check_shared(worker, trace, address, bytes, access, site);
      if (__builtin_expect(trace->in_cluster, 0)) check_cluster_shared(worker, worker, address, bytes, access, site);
    } else {
      check_global(worker, trace, region->memory, address, bytes, access, site);
    }
  }
  if (trace->counting) {
    log_access(worker, trace, site << kEventBits | (kEventLoad + access),
               pack_address(address, bytes, region->space, bypasses_l1));
  }
}

// Not inlined: for rare accesses, a copy in each of sixty functions would triple the compile time of the runtime.
static __attribute__((noinline)) void record_rare_access(const void* pointer, uint32_t bytes, uint32_t access,
                                                         const void* program_counter, bool aligned) {
  record_access(pointer, bytes, access, program_counter, aligned);
}

static __attribute__((noinline)) void record_volatile_access(const void* pointer, uint32_t bytes, uint32_t access,
                                                             const void* program_counter, bool aligned) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return;
  worker->trace->is_volatile = true;
  record_access(pointer, bytes, access, program_counter, aligned);
  worker->trace->is_volatile = false;
}

// Records a range, such as a copied structure, in pieces of at most 16 bytes. `follows`: whether the store of the whole
// range comes directly after this call.
static void record_range(const void* pointer, size_t bytes, uint32_t access, const void* program_counter,
                         bool follows = true) {
  const char* first = (const char*)pointer;
  Trace* trace = opb_worker ? opb_worker->trace : nullptr;
  if (!trace) return;
  // A compiler records the destination of a copy, then the source, and then copies: keep the pending stores in between.
  bool half = access == OPB_ACCESS_LOAD && bytes == trace->range_written;
  trace->range_written = access == OPB_ACCESS_STORE && follows ? bytes : 0;
  if (trace->pending_count && !half) report_pending(opb_worker);
  trace->report_at_once = !follows;
  trace->in_wider_store = follows;
  for (size_t offset = 0; offset < bytes;) {
    size_t piece = 16;
    while (piece > bytes - offset || ((uintptr_t)first + offset) % piece) piece /= 2;
    record_rare_access(first + offset, (uint32_t)piece, access, program_counter, true);
    offset += piece;
  }
  trace->report_at_once = trace->in_wider_store = false;
}

// ---- notifications from the scheduler

static void unmap_blocks(Trace* trace) {
  if (trace->blocks) munmap(trace->blocks, trace->block_places * sizeof(BlockCount));
  trace->blocks = nullptr;
  trace->block_places = 0;
}

// Maps a count for every byte of the module, as a basic block may begin anywhere; untouched pages take no memory.
static void map_blocks(Worker* worker, Trace* trace) {
  unmap_blocks(trace);
  uint32_t places = (uint32_t)(worker->launch->module_end - worker->launch->module_base) + 2;
  trace->blocks = trace->counting_wanted ? (BlockCount*)map_zeros(places * sizeof(BlockCount)) : nullptr;
  trace->block_places = trace->blocks ? places : 0;
}

// All blocks of a launch share global memory, variables and block numbers; each block has shared memory, clocks and
// logs.
Trace* trace_of(const Worker* worker) {
  Trace* whole = worker->launch->trace;
  if (!whole || !worker->rank) return whole;
  Trace*& part = whole->parts[worker->rank];
  if (!part) {
    part = (Trace*)map_zeros(sizeof(Trace));
    if (!part) return nullptr;
    part->interval = worker->rank << 23;  // intervals of different blocks of a cluster must differ
  }
  part->races = whole->races;
  part->memories = whole->memories;
  part->memory_count = whole->memory_count;
  part->arrays = whole->arrays;
  part->array_count = whole->array_count;
  part->variables = whole->variables;
  part->variable_count = whole->variable_count;
  part->variable_memories = whole->variable_memories;
  part->first_block = whole->first_block;
  part->whole = whole;
  part->first_moment = whole->first_moment;
  return part;
}

void trace_launch(Worker* worker) {
  Trace* trace = worker->trace;
  if (!worker->rank) {
    trace->first_block = trace->next_block;
    trace->next_block += (uint32_t)worker->launch->block_count;
    trace->first_moment = trace->next_moment;
    trace->blocks_of_moments.clear();
    reset_access_sets(&trace->block_sets);
  }
  trace->partial_barriers |= worker->launch->partial_barriers != 0;
  forget_synchronisation(trace);
  map_regions(worker, trace);
  memset(trace->seen, 0, sizeof trace->seen);
  map_blocks(worker, trace);
  if (trace->shared_cell_bytes < worker->shared_bytes || trace->shared_shift != 2) {
    if (trace->shared_cells) munmap(trace->shared_cells, trace->shared_cell_bytes * sizeof(SharedCell));
    size_t bytes = worker->shared_bytes + 64;
    trace->shared_cells = (SharedCell*)map_zeros(bytes * sizeof(SharedCell));
    trace->shared_cell_bytes = trace->shared_cells ? bytes : 0;
    trace->shared_shift = 2;
  }
}

static void next_interval(Worker* worker, Trace* trace) {
  ++trace->interval;
  for (uint32_t warp = 0; warp < worker->warps; ++warp) {
    if (!trace->clocks_used[warp]) continue;
    uint32_t first = trace->clocks_wide ? 0 : warp * kLanes, count = trace->clocks_wide ? worker->threads : kLanes;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      memset(&trace->clocks[warp * kLanes + lane][first], 0, count * sizeof(uint16_t));
    }
    trace->clocks_used[warp] = false;
  }
  trace->clocks_wide = false;
}

void trace_block_start(Worker* worker, uint64_t index, uint64_t position) {
  Trace* trace = worker->trace;
  trace->block = trace->first_block + (uint32_t)position;
  trace->previous_may_run = worker->launch->programmatic;
  trace->in_cluster = worker->team->size > 1 && !worker->launch->cooperative && trace->races;
  begin_moment(trace);
  forget_published(trace);
  forget_views(trace);
  next_interval(worker, trace);
  trace->block_interval = trace->interval;
  trace->counting = trace->counting_wanted;
  opb_access_filter.counting = trace->counting ? trace : nullptr;
  if (trace->counting) ++trace->totals.counted_blocks;
  if (trace->caches) begin_cached_block(trace->caches, index, worker->warps);
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    trace->calls[thread].depth = trace->calls[thread].step = trace->calls[thread].blocks[0] = 0;
  }
}

void trace_block_end(Worker* worker) {
  Trace* trace = worker->trace;
  if (trace->pending_count) report_pending(worker);
  if (trace->in_cluster && !worker->aborted) check_cluster_exit(worker);
  for (uint32_t warp = 0; warp < worker->warps; ++warp) {
    if (trace->logs[warp] && !worker->aborted) replay_warp(worker, warp, 0);
    return_log(trace, warp);
  }
  trace->counting = false;
  opb_access_filter.counting = nullptr;
}

void trace_barrier(Worker* worker) {
  Trace* trace = worker->trace;
  if (trace->pending_count) report_pending(worker);
  if (trace->counting) ++trace->totals.barriers;
  if (trace->acquirers.count) share_all_acquires(trace);
  publish_at_barrier(worker, trace);
  next_interval(worker, trace);
}

void trace_warp_operation(Worker* worker) {
  Trace* trace = worker->trace;
  if (trace->counting) log_event(worker, trace, kEventSync);
}

void trace_warp_sync(Worker* worker, uint32_t warp, uint32_t group) {
  Trace* trace = worker->trace;
  uint32_t first = trace->clocks_wide ? 0 : warp * kLanes, count = trace->clocks_wide ? worker->threads : kLanes;
  uint16_t latest[kMaxThreads];
  memset(latest + first, 0, count * sizeof(uint16_t));
  trace->clocks_used[warp] = true;
  trace->partial_barriers |= group != worker->live[warp];
  for (uint32_t rest = trace->acquirers.count || trace->clocks_wide ? group : 0; rest; rest &= rest - 1) {
    uint32_t thread = warp * kLanes + __builtin_ctz(rest);
    share_own_acquires(trace, thread);
    acquire_pending_clock(worker, thread);
  }
  for (uint32_t rest = trace->locks_used ? group : 0; rest; rest &= rest - 1) {
    note_lock_fence(trace, warp * kLanes + __builtin_ctz(rest), kBlockLevel);
  }
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    uint32_t thread = warp * kLanes + __builtin_ctz(rest);
    uint16_t* known = trace->clocks[thread];
    if (known[thread] < kClockLimit) ++known[thread];
    for (uint32_t other = first; other < first + count; ++other) {
      if (known[other] > latest[other]) latest[other] = known[other];
    }
  }
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    memcpy(&trace->clocks[warp * kLanes + __builtin_ctz(rest)][first], latest + first, count * sizeof(uint16_t));
  }
}

extern "C" {

// Starts a copy of `valid` bytes, filled with zeros up to `bytes`; the caller has recorded the load of the source.
void opb_copy_async(void* to, const void* from, unsigned bytes, unsigned valid, const void* program_counter) {
  Worker* worker = opb_worker;
  AsyncCopy* copy = worker->free_copies;
  if (copy) {
    worker->free_copies = copy->next;
  } else {
    copy = (AsyncCopy*)allocate_zeros(sizeof(AsyncCopy));
  }
  CopyQueue* queue = &worker->copies[worker->current];
  *copy = {nullptr, (char*)to, bytes, queue->group, site_of(worker, program_counter), {}};
  memcpy(copy->data, from, valid);
  (queue->oldest ? queue->newest->next : queue->oldest) = copy;
  queue->newest = copy;
  ++worker->copies_in_flight;
  if (!worker->trace) return;
  worker->trace->report_at_once = true;
  record_access(to, bytes, OPB_ACCESS_STORE, program_counter);
  worker->trace->report_at_once = false;
  for_each_target_cell(worker, copy, start_copy_in_cell);
}

// ---- called by the shim: accesses that the compiler does not instrument

#define OPB_HERE __builtin_return_address(0)

static void record_word(const void* pointer, size_t bytes, uint32_t word, const void* program_counter) {
  Trace* trace = opb_worker ? opb_worker->trace : nullptr;
  if (!trace) return;
  word |= trace->next_word;
  trace->next_word = 0;
  trace->word = word & ~3u;
  trace->is_volatile = word & (OPB_STRONG | OPB_VOLATILE) && (word & 3) != OPB_ACCESS_ATOMIC;
  record_range(pointer, bytes, word & 3, program_counter, false);
  trace->is_volatile = false;
  trace->word = 0;
}

void opb_trace_access(const void* pointer, unsigned bytes, unsigned access, const void* program_counter) {
  record_word(pointer, bytes, access, program_counter);
}

void opb_trace_atomic(const void* pointer, unsigned bytes, unsigned word, const void* program_counter) {
  vary_order(opb_worker);
  record_word(pointer, bytes, word, program_counter);
}

void opb_trace_swapped(const void* pointer, unsigned bytes, const void* before, unsigned word) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return;
  uint64_t free = 0;
  memcpy(&free, before, bytes < sizeof free ? bytes : sizeof free);
  take_lock(worker->trace, worker->current, (uintptr_t)pointer, free, word);
}

void opb_trace_order(unsigned word) {
  Worker* worker = opb_worker;
  vary_order(worker);
  if (worker && worker->trace) worker->trace->next_word = word;
}

void opb_trace_fence(unsigned word) {
  Worker* worker = opb_worker;
  if (worker && worker->trace) {
    note_fence(worker, worker->trace, word);
    poll_by_fence(worker);
  }
  if (!(word & OPB_BLOCK_SCOPE)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void opb_wait_for_launches(void) {
  Worker* worker = opb_worker;
  if (worker->trace) worker->trace->previous_may_run = false;
}

void opb_trace_bypass_l1(void) {
  Worker* worker = opb_worker;
  if (worker && worker->trace) worker->trace->bypasses_l1 = true;
}

unsigned opb_coordinate(unsigned which, unsigned axis) {
  const uint3* values[] = {&opb_current.thread, &opb_current.block, &opb_current.block_size, &opb_current.grid_size};
  return (&values[which]->x)[axis];
}

// ---- called by Python

static void free_variables(Trace* trace) {
  for (uint32_t index = 0; index < trace->variable_count; ++index) unmap_cells(&trace->variable_memories[index]);
  free(trace->variable_memories);
  free(trace->variables);
  trace->variable_memories = nullptr;
  trace->variables = nullptr;
  trace->variable_count = 0;
}

OPB_API Trace* opb_trace_open(const TraceBuffer* buffers, unsigned count, int counts, int races) {
  Trace* trace = (Trace*)map_zeros(sizeof(Trace));
  if (!trace) return nullptr;
  trace->races = races;
  trace->next_block = 1;
  trace->next_moment = trace->first_moment = 1;
  trace->whole = trace;
  trace->counting_wanted = counts;
  trace->memories = (GlobalMemory*)allocate_zeros((count + 1) * sizeof(GlobalMemory));
  trace->memory_count = trace->memories ? count : 0;
  for (unsigned index = 0; index < trace->memory_count; ++index) {
    uint32_t item = buffers[index].item_bytes, shift = item >= 4 ? 2 : item >> 1;
    size_t cells = (buffers[index].bytes >> shift) + 16;
    trace->memories[index] = {buffers[index].start,
                              buffers[index].start + buffers[index].bytes,
                              buffers[index].initialised != 0,
                              buffers[index].initialised == 0,
                              shift,
                              nullptr,
                              nullptr,
                              false};
    if (races) map_cells(&trace->memories[index], cells);
  }
  return trace;
}

OPB_API void opb_trace_initialised(Trace* trace, unsigned buffer) { trace->memories[buffer].initialised = true; }

// Records reads by each thread from now on, because the next launch may write to the buffer.
OPB_API void opb_trace_writable(Trace* trace, unsigned buffer) { trace->memories[buffer].tracks_threads = true; }

// Models caches of these sizes from the next launch on. The size of L1 depends on the launch's shared memory.
OPB_API void opb_trace_caches(Trace* trace, unsigned multiprocessors, unsigned resident_blocks, uint64_t l1_bytes,
                              uint64_t l2_bytes) {
  if (!trace->caches) {
    trace->caches = (Caches*)allocate_zeros(sizeof(Caches));
    if (!trace->caches) return;
    trace->caches->l1 = (Cache*)allocate_zeros(multiprocessors * sizeof(Cache));
    trace->caches->l1_count = trace->caches->l1 ? multiprocessors : 0;
  }
  Caches* caches = trace->caches;
  ++caches->launch;
  caches->wave_blocks = multiprocessors * resident_blocks;
  caches->blocks = caches->stream_count = 0;
  bool sized = caches->l1_count && size_cache(&caches->l2, l2_bytes);
  for (uint32_t index = 0; sized && index < caches->l1_count; ++index) sized = size_cache(&caches->l1[index], l1_bytes);
  if (sized) return;
  free_caches(caches);
  trace->caches = nullptr;
}

// Returns the cache traffic since the last call and resets it.
OPB_API void opb_trace_take_caches(Trace* trace, CacheTotals* totals) {
  *totals = {};
  if (!trace->caches) return;
  finish_wave(trace->caches);
  *totals = trace->caches->totals;
  trace->caches->totals = {};
}

static uint32_t copy_arrays(SharedArray** own, const SharedArray* arrays, uint32_t count) {
  free(*own);
  *own = (SharedArray*)allocate_zeros((count + 1) * sizeof(SharedArray));
  if (!*own) return 0;
  memcpy(*own, arrays, count * sizeof(SharedArray));
  return count;
}

OPB_API void opb_trace_arrays(Trace* trace, const SharedArray* arrays, unsigned count) {
  trace->array_count = copy_arrays(&trace->arrays, arrays, count);
}

OPB_API void opb_trace_variables(Trace* trace, const SharedArray* variables, unsigned count) {
  free_variables(trace);
  trace->variable_memories = (GlobalMemory*)allocate_zeros((count + 1) * sizeof(GlobalMemory));
  if (!trace->variable_memories) return;
  trace->variable_count = copy_arrays(&trace->variables, variables, count);
  for (unsigned index = 0; index < trace->variable_count; ++index) {
    trace->variable_memories[index] = {0,       variables[index].bytes,        true, true, 2, nullptr,
                                       nullptr, variables[index].constant != 0};
    if (trace->races) map_cells(&trace->variable_memories[index], (variables[index].bytes >> 2) + 17);
  }
}

// Returns the counts since the last call and resets them; `out` has room for kCountSlots of them.
OPB_API unsigned opb_trace_take(Trace* trace, Count* out, TraceTotals* totals) {
  unsigned found = 0;
  if (trace->count_total) {  // otherwise no page of the table is in use
    for (const Count& count : trace->counts) {
      if (count.bytes) out[found++] = count;
    }
    memset(trace->counts, 0, sizeof trace->counts);
  }
  *totals = trace->totals;
  memset(&trace->totals, 0, sizeof trace->totals);
  trace->count_total = 0;
  return found;
}

// Returns the divergent branches of the launch and resets them; `out` has room for kBranches of them.
OPB_API unsigned opb_trace_take_branches(Trace* trace, Branch* out) {
  unsigned found = 0;
  bool open = false;  // whether the last branch still lacks its `next` block
  for (uint32_t site = 0; site < trace->block_places; ++site) {
    BlockCount* block = &trace->blocks[site];
    if (!block->executions) continue;
    if (open) out[found - 1].next = site;
    open = block->divergent && found < kBranches;
    if (open) out[found++] = {site, 0, block->executions, block->divergent, block->fewest_lanes};
  }
  unmap_blocks(trace);
  return found;
}

static void free_own_memory(Trace* trace) {
  unmap_cells(&trace->cluster_memory);
  forget_synchronisation(trace);
  for (uint32_t warp = 0; warp < kMaxWarps; ++warp) return_log(trace, warp);
  while (trace->free_logs) {
    WarpLog* log = trace->free_logs;
    trace->free_logs = log->next_free;
    free(log);
  }
  if (trace->shared_cells) munmap(trace->shared_cells, trace->shared_cell_bytes * sizeof(SharedCell));
  unmap_blocks(trace);
  for (VectorClock* view : trace->proxy_views) free(view);
  free(trace->async_reads.items);
  free(trace->regions);
  free(trace->locations.items);
  free(trace->location_slots);
  free(trace->acquired.items);
  for (uint32_t thread = 0; thread < kMaxThreads; ++thread) {
    free(trace->acquired_by[thread].items);
    free(trace->unacquired_by[thread].items);
    free(trace->pending_clocks[thread]);
  }
  free(trace->acquirers.items);
  free(trace->sections.items);
  free(trace->blocks_of_moments.items);
  free_access_sets(&trace->block_sets);
  free_access_sets(&trace->thread_sets);
  forget_published(trace);
  munmap(trace, sizeof(Trace));
}

OPB_API void opb_trace_close(Trace* trace) {
  free_caches(trace->caches);
  for (uint32_t index = 0; index < trace->memory_count; ++index) {
    unmap_cells(&trace->memories[index]);
  }
  for (Trace* part : trace->parts) {
    if (part) free_own_memory(part);
  }
  free(trace->memories);
  free(trace->arrays);
  free_variables(trace);
  free_own_memory(trace);
}

// ---- called by instrumented code

static inline bool is_ignored(const void* pointer) {
  return (uintptr_t)pointer - opb_access_filter.start < opb_access_filter.bytes;
}

// The fast path must not save registers, so the slow path is a function of its own.
#define OPB_ACCESS(NAME, BYTES, KIND)                                                                \
  static __attribute__((noinline)) void record_##NAME##BYTES(void* p, const void* program_counter) { \
    record_access(p, BYTES, KIND, program_counter);                                                  \
  }                                                                                                  \
  OPB_API void __tsan_##NAME##BYTES(void* p) {                                                       \
    if (!is_ignored(p)) record_##NAME##BYTES(p, OPB_HERE);                                           \
  }
#define OPB_RARE_ACCESS(NAME, BYTES, KIND, ALIGNED)                            \
  OPB_API void __tsan_##NAME##BYTES(void* p) {                                 \
    if (!is_ignored(p)) record_rare_access(p, BYTES, KIND, OPB_HERE, ALIGNED); \
  }
#define OPB_VOLATILE_ACCESS(NAME, BYTES, KIND, ALIGNED)        \
  OPB_API void __tsan_##NAME##BYTES(void* p) {                 \
    if (is_ignored(p)) return vary_order(opb_worker);          \
    record_volatile_access(p, BYTES, KIND, OPB_HERE, ALIGNED); \
  }
#define OPB_LOAD_AND_STORE(NAME, BYTES, ALIGNED)                       \
  OPB_API void __tsan_##NAME##BYTES(void* p) {                         \
    if (is_ignored(p)) return;                                         \
    record_rare_access(p, BYTES, OPB_ACCESS_LOAD, OPB_HERE, ALIGNED);  \
    record_rare_access(p, BYTES, OPB_ACCESS_STORE, OPB_HERE, ALIGNED); \
  }
#define OPB_ACCESSES(BYTES)                                                     \
  OPB_VOLATILE_ACCESS(volatile_read, BYTES, OPB_ACCESS_LOAD, true)              \
  OPB_VOLATILE_ACCESS(volatile_write, BYTES, OPB_ACCESS_STORE, true)            \
  OPB_RARE_ACCESS(unaligned_read, BYTES, OPB_ACCESS_LOAD, false)                \
  OPB_RARE_ACCESS(unaligned_write, BYTES, OPB_ACCESS_STORE, false)              \
  OPB_VOLATILE_ACCESS(unaligned_volatile_read, BYTES, OPB_ACCESS_LOAD, false)   \
  OPB_VOLATILE_ACCESS(unaligned_volatile_write, BYTES, OPB_ACCESS_STORE, false) \
  OPB_LOAD_AND_STORE(read_write, BYTES, true)                                   \
  OPB_LOAD_AND_STORE(unaligned_read_write, BYTES, false)
OPB_RARE_ACCESS(read, 1, OPB_ACCESS_LOAD, true)
OPB_RARE_ACCESS(write, 1, OPB_ACCESS_STORE, true)
OPB_ACCESSES(1)
OPB_RARE_ACCESS(read, 2, OPB_ACCESS_LOAD, true)
OPB_RARE_ACCESS(write, 2, OPB_ACCESS_STORE, true)
OPB_ACCESSES(2)
OPB_ACCESS(read, 4, OPB_ACCESS_LOAD)
OPB_ACCESS(write, 4, OPB_ACCESS_STORE)
OPB_ACCESSES(4)
OPB_RARE_ACCESS(read, 8, OPB_ACCESS_LOAD, true)
OPB_RARE_ACCESS(write, 8, OPB_ACCESS_STORE, true)
OPB_ACCESSES(8)
OPB_RARE_ACCESS(read, 16, OPB_ACCESS_LOAD, true)
OPB_RARE_ACCESS(write, 16, OPB_ACCESS_STORE, true)
OPB_ACCESSES(16)

OPB_API void __tsan_read_range(void* p, size_t bytes) { record_range(p, bytes, OPB_ACCESS_LOAD, OPB_HERE); }
OPB_API void __tsan_write_range(void* p, size_t bytes) { record_range(p, bytes, OPB_ACCESS_STORE, OPB_HERE); }

OPB_API void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  record_range(from, bytes, OPB_ACCESS_LOAD, OPB_HERE);
  record_range(to, bytes, OPB_ACCESS_STORE, OPB_HERE);
  return memcpy(to, from, bytes);
}
OPB_API void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  record_range(from, bytes, OPB_ACCESS_LOAD, OPB_HERE);
  record_range(to, bytes, OPB_ACCESS_STORE, OPB_HERE);
  return memmove(to, from, bytes);
}
OPB_API void* __tsan_memset(void* to, int value, size_t bytes) {
  record_range(to, bytes, OPB_ACCESS_STORE, OPB_HERE);
  return memset(to, value, bytes);
}

static void report_beyond_local(Worker* worker, const void* program_counter) {
  Report fresh = blank_report(worker, kReportLocal, "reaches beyond a local variable, through a pointer into it");
  fresh.program_counter = site_of(worker, program_counter);
  fresh.caller = caller_of(worker);
  add_report(&fresh);
}

static bool is_local(const Worker* worker, uintptr_t pointer) {
  return pointer - (uintptr_t)worker->stacks < kStackBytes * (size_t)worker->stack_count;
}

// Records one side of a copy. Bytes beyond a local variable are reported and not accessed, because other variables lie
// there.
static size_t record_side(const void* pointer, size_t bytes, size_t room, uint32_t access,
                          const void* program_counter) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return bytes;
  if (bytes > room && is_local(worker, (uintptr_t)pointer)) {
    report_beyond_local(worker, program_counter);
    bytes = room;
  }
  record_range(pointer, bytes, access, program_counter);
  return bytes;
}

static inline size_t least(size_t left, size_t right) { return left < right ? left : right; }

static void* record_copy(void* to, const void* from, size_t bytes, size_t room, size_t room_from,
                         const void* program_counter) {
  size_t readable = record_side(from, bytes, room_from, OPB_ACCESS_LOAD, program_counter);
  size_t writable = record_side(to, bytes, room, OPB_ACCESS_STORE, program_counter);
  return memmove(to, from, least(readable, writable));
}
void* opb_trace_memcpy(void* to, const void* from, size_t bytes, size_t room, size_t room_from) {
  return record_copy(to, from, bytes, room, room_from, OPB_HERE);
}
void* opb_trace_memmove(void* to, const void* from, size_t bytes, size_t room, size_t room_from) {
  return record_copy(to, from, bytes, room, room_from, OPB_HERE);
}
void* opb_trace_memset(void* to, int value, size_t bytes, size_t room) {
  return memset(to, value, record_side(to, bytes, room, OPB_ACCESS_STORE, OPB_HERE));
}
int opb_trace_memcmp(const void* left, const void* right, size_t bytes, size_t room, size_t room_right) {
  size_t readable = record_side(left, bytes, room, OPB_ACCESS_LOAD, OPB_HERE);
  return memcmp(left, right, least(readable, record_side(right, bytes, room_right, OPB_ACCESS_LOAD, OPB_HERE)));
}

static __attribute__((noinline)) void record_entry(Trace* trace, const void* call) {
  Worker* worker = opb_worker;
  // A kernel's wrapper ends in a jump, so the kernel's return address lies in the runtime, not in the module.
  uintptr_t caller = (uintptr_t)call;
  bool inside = caller >= worker->launch->module_base && caller < worker->launch->module_end;
  log_event(worker, trace, (inside ? site_of(worker, call) : 0) << kEventBits | kEventEnter);
}
static __attribute__((noinline)) void record_exit(Trace* trace) {
  log_event(opb_worker, trace,
            kLastSite << kEventBits | kEventExit);  // the last position, so that lanes leave together
}
static __attribute__((noinline)) void record_block(Trace* trace, const void* program_counter) {
  Worker* worker = opb_worker;
  log_event(worker, trace, site_of(worker, program_counter) << kEventBits | kEventBlock);
}
OPB_API void __tsan_func_entry(void* call) {
  if (Trace* trace = opb_access_filter.counting) record_entry(trace, call);
}
OPB_API void __tsan_func_exit(void) {
  if (Trace* trace = opb_access_filter.counting) record_exit(trace);
}
OPB_API void __sanitizer_cov_trace_pc(void) {
  if (Trace* trace = opb_access_filter.counting) record_block(trace, OPB_HERE);
}

// -fsanitize=bounds: an index beyond an array whose size the compiler knows. The layout of the data is libubsan's.
struct IndexedArray {
  struct {
    const char* file;
    uint32_t line, column;
  } place;
  struct {
    uint16_t kind, info;
    char name[1];
  } *array, *index;
};
OPB_API void __ubsan_handle_out_of_bounds(const IndexedArray* data, uintptr_t index) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return;
  Report fresh = blank_report(worker, kReportIndex, data->array->name);
  fresh.program_counter = site_of(worker, OPB_HERE);
  fresh.address = index;
  fresh.caller = caller_of(worker);
  add_report(&fresh);
}

// -fsanitize=object-size: a pointer beyond its variable. Only for local variables: shadow memory covers the others.
OPB_API void __ubsan_handle_type_mismatch_v1(const void*, uintptr_t pointer) {
  Worker* worker = opb_worker;
  if (worker && worker->trace && is_local(worker, pointer)) report_beyond_local(worker, OPB_HERE);
}

// -fsanitize=signed-integer-overflow, in a build for huge problems.
struct Overflow {
  decltype(IndexedArray::place) place;
  decltype(IndexedArray::array) type;
};
static void report_overflow(const Overflow* data, uintptr_t left, uintptr_t right, const char* operation,
                            const void* program_counter) {
  Worker* worker = opb_worker;
  if (!worker || !worker->trace) return;
  char text[200];
  snprintf(text, sizeof text, "%lld %s %lld in %s", (long long)left, operation, (long long)right, data->type->name);
  Report fresh = blank_report(worker, kReportOverflow, text);
  fresh.program_counter = site_of(worker, program_counter);
  fresh.caller = caller_of(worker);
  Trace* trace = worker->trace;
  auto* slot = &trace->seen[(fresh.program_counter * 31 + kReportOverflow) % kSeenReports];
  uint64_t key = (uint64_t)kReportOverflow << 32 | fresh.program_counter;
  if (slot->key == key) return;  // the operands differ every time: only the first pair is reported
  Report* kept = add_report(&fresh);
  if (kept) *slot = {key, kept};
}
#define OPB_OVERFLOW(NAME, OPERATION)                                                                    \
  OPB_API void __ubsan_handle_##NAME##_overflow(const Overflow* data, uintptr_t left, uintptr_t right) { \
    report_overflow(data, left, right, OPERATION, OPB_HERE);                                             \
  }
OPB_OVERFLOW(add, "+")
OPB_OVERFLOW(sub, "-")
OPB_OVERFLOW(mul, "*")
OPB_OVERFLOW(divrem, "/")
OPB_API void __ubsan_handle_negate_overflow(const Overflow* data, uintptr_t value) {
  report_overflow(data, 0, value, "-", OPB_HERE);
}

OPB_API void __tsan_init(void) {}
OPB_API void __tsan_atomic_thread_fence(int) { opb_trace_fence(OPB_ACQUIRES | OPB_RELEASES); }
OPB_API void __tsan_atomic_signal_fence(int) {}
OPB_API void __tsan_vptr_read(void**) {}
OPB_API void __tsan_vptr_update(void**, void*) {}
}
