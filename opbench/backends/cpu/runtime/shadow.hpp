// Races and uninitialised reads: each location remembers its last accesses, and every access looks at them first.
#pragma once
#include "trace.hpp"

static void trace_learn(Worker* worker, const ClockRow* row);

// ---- stores that raced and may have changed nothing: whoever is last, the same is stored

// Blocks that store one and the same small number raise a flag; blocks that compute the same elements are a mistake.
static bool is_flag(const Pending* store) {
  uint32_t others = store->bytes - 1;
  bool small = others == 0 || (store->before[1] == 0 && memcmp(store->before + 1, store->before + 2, others - 1) == 0);
  return store->other.access != OPB_ACCESS_LOAD && small;
}

static __attribute__((noinline)) void settle_pending(Worker* worker) {
  Trace* trace = worker->trace;
  uint32_t self = worker->current, count = trace->pending_count;
  trace->pending_count = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const Pending* store = &trace->pending[index];
    bool same = memcmp(store->before, (const void*)store->address, store->bytes) == 0;
    bool allowed = same && (store->kind != kReportGlobalRace || is_flag(store));
    ReportKind kind = allowed ? kReportSameValue : store->kind;
    set_current(worker, store->thread);
    trace_report(worker, kind, store->site, store->address, store->bytes, store->access, &store->other);
    set_current(worker, self);
  }
}

static __attribute__((noinline)) void report_race(Worker* worker, ReportKind kind, uint32_t site, uintptr_t address,
                                                  uint32_t bytes, uint32_t access, const Other* other) {
  Trace* trace = worker->trace;
  bool later = access == OPB_ACCESS_STORE && !trace->at_once && bytes <= kPendingBytes &&
               (kind == kReportSharedRace || kind == kReportGlobalRace || kind == kReportThreadRace);
  // A wide store meets the same other one at each of its cells: one stands for all.
  for (uint32_t index = 0; later && index < trace->pending_count; ++index) {
    const Pending* store = &trace->pending[index];
    bool known = store->kind == kind && store->address == address && store->other.access == other->access;
    if (known && store->bytes == bytes && store->site == site && store->thread == worker->current) return;
  }
  if (!later || trace->pending_count == kPending) {
    return trace_report(worker, kind, site, address, bytes, access, other);
  }
  Pending* store = &trace->pending[trace->pending_count++];
  *store = {kind, site, bytes, access, worker->current, address, {}, *other};
  memcpy(store->before, (const void*)address, bytes);
}

// ---- shared memory: threads of one block, ordered by barriers, and within a warp by __syncwarp()

constexpr uint16_t kThreadMask = 0x3ff, kAtomicFlag = 0x8000, kSeveralLanes = 0x8000, kSeveralWarps = 0x4000;
constexpr uint16_t kBulkFlag = 0x4000;  // of a writer: the bulk copy that the thread started
constexpr uint16_t kVolatileFlag = 0x2000;  // of a writer or reader
constexpr uint32_t kBothVolatile = 4, kBetweenBlocks = 8;  // of a report's `instructions`
constexpr uint16_t kClockLimit = 0xffff;
constexpr uint32_t kCopyInFlight = ~0u;  // an interval that is later than all: copies.hpp

static inline uint16_t own_clock(const Trace* trace, uint32_t thread) {
  return trace->clocks[thread][thread];
}

// Whether an access of `earlier` at that clock happened before what `later` does now, both within one interval.
static inline bool ordered(const Trace* trace, uint32_t earlier, uint16_t clock, uint32_t later) {
  if (!trace->clocks_wide && earlier / kLanes != later / kLanes) return false;
  return trace->clocks[later][earlier] > clock || clock == kClockLimit;
}

static __attribute__((noinline)) void report_shared_race(Worker* worker, uint32_t site, uintptr_t address,
                                                         uint32_t bytes, uint32_t access, uint32_t other_site,
                                                         uint32_t other_thread, uint32_t other_access,
                                                         ReportKind kind = kReportSharedRace,
                                                         uint32_t instructions = 2) {
  Other other = {other_site, opb_current.block, worker->coordinates[other_thread], other_thread / kLanes,
                 other_access, instructions};
  report_race(worker, kind, site, address, bytes, access, &other);
}

static inline void note_shared_read(const Trace* trace, SharedCell* cell, uint32_t self, uint32_t site) {
  uint16_t clock = own_clock(trace, self), flags = 0;
  if (cell->read_interval == trace->interval) {
    uint32_t reader = cell->reader & kThreadMask;
    flags = cell->reader & (kSeveralLanes | kSeveralWarps);
    if (ordered(trace, reader, cell->read_clock, self)) {
      flags &= kSeveralWarps;  // what came before the meeting of the lanes is settled
    } else if (reader == self) {
      return;
    } else {
      flags |= reader / kLanes == self / kLanes ? kSeveralLanes : kSeveralWarps;
      cell->other_reader = (uint16_t)(reader | (cell->reader & kVolatileFlag));
      cell->other_clock = cell->read_clock;
      cell->other_site = cell->read_site;
    }
  }
  cell->read_interval = trace->interval;
  cell->read_site = site;
  cell->reader = (uint16_t)(self | flags | (trace->is_volatile ? kVolatileFlag : 0));
  cell->read_clock = clock;
}

// Whether the last reader, or the last but one, may still be reading; which of them is told.
static inline bool readers_unordered(const Trace* trace, const SharedCell* cell, uint32_t self, bool* last_but_one) {
  uint32_t reader = cell->reader & kThreadMask, others = cell->reader & (kSeveralLanes | kSeveralWarps);
  *last_but_one = reader == self;
  if (cell->read_interval != trace->interval) return false;
  if (trace->clocks_wide) {
    if (reader != self && !ordered(trace, reader, cell->read_clock, self)) return true;
    *last_but_one = true;
    uint32_t before = cell->other_reader & kThreadMask;
    return others && before != self && !ordered(trace, before, cell->other_clock, self);
  }
  if (others & kSeveralWarps) return true;
  if (reader == self && !others) return false;
  return !ordered(trace, reader, cell->read_clock, self);
}

// Cells as small as the smallest access: threads that write neighbouring halves do not race.
static __attribute__((noinline)) void refine_shared(Trace* trace, uint32_t shift) {
  uint32_t pieces = 1u << (trace->shared_shift - shift);
  size_t count = trace->shared_cell_bytes >> trace->shared_shift;
  for (size_t index = count; index-- > 0;) {
    SharedCell cell = trace->shared_cells[index];
    for (uint32_t piece = 0; piece < pieces; ++piece) trace->shared_cells[index * pieces + piece] = cell;
  }
  trace->shared_shift = shift;
}

static inline uint32_t shift_of(uintptr_t address, uint32_t bytes) {
  uintptr_t alignment = address | bytes;
  return alignment & 1 ? 0 : alignment & 2 ? 1 : 2;
}

// A location that two warps look at and change as a flag only: volatile, or by atomic operations. Within a warp such code
// relies on lanes in step, as before Volta.
static inline bool both_flags(const Trace* trace, uint32_t access, uint16_t other, uint32_t self) {
  if (!trace->is_volatile && access != OPB_ACCESS_ATOMIC) return false;
  if (!(other & (kVolatileFlag | kAtomicFlag))) return false;
  return (other & kThreadMask) / kLanes != self / kLanes || access == OPB_ACCESS_ATOMIC || other & kAtomicFlag;
}

// The last reader, or the last but one, with its flag.
static inline uint16_t reader_of(const SharedCell* cell, bool last_but_one) {
  return (last_but_one ? cell->other_reader : cell->reader) & (kVolatileFlag | kThreadMask);
}

// What a report says where the other access is volatile as this one is: before Volta a warp's lanes went in step.
static inline uint32_t volatile_too(const Trace* trace, uint16_t other) {
  return trace->is_volatile && other & kVolatileFlag ? kBothVolatile : 0;
}

static inline void check_shared_cell(Worker* worker, Trace* trace, SharedCell* cell, uintptr_t address, uint32_t bytes,
                                     uint32_t access, uint32_t site) {
  uint32_t self = worker->current;
  if (cell->write_interval == trace->interval) {
    uint32_t writer = cell->writer & kThreadMask;
    bool both_atomic = access == OPB_ACCESS_ATOMIC && cell->writer & kAtomicFlag;
    if (writer != self && !both_atomic && !ordered(trace, writer, cell->write_clock, self) &&
        !both_flags(trace, access, cell->writer, self)) {
      uint32_t other_access = cell->writer & kAtomicFlag ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE;
      report_shared_race(worker, site, address, bytes, access, cell->write_site, writer, other_access,
                         cell->writer & kBulkFlag ? kReportUnfinishedBulk : kReportSharedRace,
                         2 | volatile_too(trace, cell->writer));
    }
  } else if (access != OPB_ACCESS_STORE && cell->write_interval < trace->block_interval) {
    trace_report(worker, kReportUninitialisedShared, site, address, bytes, access, nullptr);
  } else if (__builtin_expect(cell->write_interval == kCopyInFlight, 0)) {
    uint32_t writer = cell->writer & kThreadMask;
    report_shared_race(worker, site, address, bytes, access, cell->write_site, writer, OPB_ACCESS_STORE,
                       cell->writer & kBulkFlag ? kReportUnfinishedBulk : kReportUnfinishedCopy);
  }
  if (access == OPB_ACCESS_LOAD) {
    note_shared_read(trace, cell, self, site);
    return;
  }
  bool other;
  uint16_t reader;
  if (readers_unordered(trace, cell, self, &other) && !both_flags(trace, access, reader = reader_of(cell, other), self)) {
    uint32_t read_site = other ? cell->other_site : cell->read_site;
    report_shared_race(worker, site, address, bytes, access, read_site, reader & kThreadMask, OPB_ACCESS_LOAD,
                       kReportSharedRace, 2 | volatile_too(trace, reader));
  }
  if (__builtin_expect(cell->async_read, 0) && cell->async_read <= trace->async_reads.count) {
    const AsyncRead* read = &trace->async_reads.items[cell->async_read - 1];
    if (!read->done) {
      report_shared_race(worker, site, address, bytes, access, read->site, read->thread, OPB_ACCESS_LOAD,
                         kReportEarlyOverwrite);
    }
  }
  cell->write_interval = trace->interval;
  cell->write_site = site;
  cell->writer = (uint16_t)(self | (access == OPB_ACCESS_ATOMIC ? kAtomicFlag : 0) | (trace->is_volatile ? kVolatileFlag : 0));
  cell->write_clock = own_clock(trace, self);
  cell->write_fences = trace->proxy_fences[self];
}

static inline void check_shared(Worker* worker, Trace* trace, uintptr_t address, uint32_t bytes, uint32_t access,
                                uint32_t site) {
  uintptr_t offset = address - (uintptr_t)worker->shared_base;
  uint32_t shift = shift_of(offset, bytes);
  if (shift < trace->shared_shift) refine_shared(trace, shift);
  SharedCell* cell = trace->shared_cells + (offset >> trace->shared_shift);
  SharedCell* last = trace->shared_cells + ((offset + bytes - 1) >> trace->shared_shift);
  for (; cell <= last; ++cell) check_shared_cell(worker, trace, cell, address, bytes, access, site);
}

// ---- global memory: blocks of one launch, ordered only by a fence and an atomic operation

// A site of a global cell: where, after how many fences of its block, and whether by an atomic operation.
constexpr uint32_t kFenceLimit = 63;
static inline uint32_t pack_site(const Trace* trace, uint32_t site, bool atomic) {
  uint32_t fences = trace->fences < kFenceLimit ? trace->fences : kFenceLimit;
  return site << 7 | fences << 1 | (atomic ? 1 : 0);
}

// Whether `block` published what it had done after `fences` fences, and this block has seen the publication.
static __attribute__((noinline)) bool ordered_by_atomics(const Trace* trace, uint32_t block, uint32_t packed) {
  uint32_t fences = packed >> 1 & kFenceLimit;
  for (uint32_t index = 0; index < trace->acquired_count; ++index) {
    const SyncLocation* location = &trace->locations[trace->acquired[index].location];
    uint32_t low = 0, high = trace->acquired[index].length;
    while (low < high) {  // blocks run one after another, so the log is sorted
      uint32_t middle = (low + high) / 2;
      if (location->log[middle].block < block) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == trace->acquired[index].length || location->log[low].block != block) continue;
    if (location->log[low].clock > fences || fences == kFenceLimit) return true;
  }
  return false;
}

static uint3 block_of_number(const Worker* worker, uint32_t number) {
  const Launch* launch = worker->launch;
  uint64_t index = block_at(launch, number - worker->trace->first_block), row = index / launch->grid.x;
  return {(uint32_t)(index % launch->grid.x), (uint32_t)(row % launch->grid.y), (uint32_t)(row / launch->grid.y)};
}

static __attribute__((noinline)) void judge_global_race(Worker* worker, uintptr_t address, uint32_t bytes,
                                                        uint32_t access, uint32_t site, uint32_t block, uint32_t packed,
                                                        uint32_t other_access) {
  const Trace* trace = worker->trace;
  if (ordered_by_atomics(trace, block, packed)) return;
  // Blocks of one cluster meet at its barrier; when, is not followed.
  uint32_t size = cluster_size(worker->launch);
  if ((block - trace->first_block) / size == (trace->block - trace->first_block) / size) return;
  Other other = {packed >> 7, block_of_number(worker, block), {0, 0, 0}, 0, other_access, kBetweenBlocks};
  report_race(worker, kReportGlobalRace, site, address, bytes, access, &other);
}

static void refine_threads(GlobalMemory* memory, size_t count, uint32_t pieces, SharedCell* fine) {
  for (size_t index = 0; index < count; ++index) {
    const SharedCell* cell = &memory->threads[index];
    if (!cell->write_interval && !cell->read_interval) continue;
    for (uint32_t piece = 0; piece < pieces; ++piece) fine[index * pieces + piece] = *cell;
  }
  munmap(memory->threads, (count + 16) * sizeof(SharedCell));
  memory->threads = fine;
}

static __attribute__((noinline)) void refine_global(GlobalMemory* memory, uint32_t shift) {
  size_t count = (memory->end - memory->start + (1u << memory->shift) - 1) >> memory->shift;
  uint32_t pieces = 1u << (memory->shift - shift);
  GlobalCell* fine = (GlobalCell*)map_zeros((count * pieces + 16) * sizeof(GlobalCell));
  SharedCell* fine_threads = (SharedCell*)map_zeros((count * pieces + 16) * sizeof(SharedCell));
  for (size_t index = 0; index < count; ++index) {
    GlobalCell cell = memory->cells[index];
    if (!cell.writer && !cell.reader) continue;
    for (uint32_t piece = 0; piece < pieces; ++piece) fine[index * pieces + piece] = cell;
  }
  munmap(memory->cells, (count + 16) * sizeof(GlobalCell));
  memory->cells = fine;
  refine_threads(memory, count, pieces, fine_threads);
  memory->shift = shift;
}

// Before griddepcontrol.wait: what a launch ahead has written may not be there yet, what it reads may still be needed.
static __attribute__((noinline)) void check_launch_ahead(Worker* worker, const GlobalCell* cell, uintptr_t address,
                                                         uint32_t bytes, uint32_t access, uint32_t site) {
  const Trace* trace = worker->trace;
  bool written = cell->writer && cell->writer < trace->first_block;
  bool read = access != OPB_ACCESS_LOAD && cell->reader && cell->reader < trace->first_block;
  if (!written && !read) return;
  uint32_t packed = written ? cell->write_site : cell->read_site;
  Other other = {packed >> 7, {0, 0, 0}, {0, 0, 0}, 0, written ? OPB_ACCESS_STORE : OPB_ACCESS_LOAD, 0};
  trace_report(worker, kReportMissingWait, site, address, bytes, access, &other);
}

// Within the block, as in shared memory; but who updates atomically what another reads does no harm, as between blocks.
static inline void check_threads(Worker* worker, Trace* trace, SharedCell* cell, uintptr_t address, uint32_t bytes,
                                 uint32_t access, uint32_t site) {
  uint32_t self = worker->current;
  if (cell->write_interval == trace->interval) {
    uint32_t writer = cell->writer & kThreadMask;
    bool atomic = cell->writer & kAtomicFlag && access != OPB_ACCESS_STORE;
    if (writer != self && !atomic && !ordered(trace, writer, cell->write_clock, self) &&
        !both_flags(trace, access, cell->writer, self)) {
      uint32_t other_access = cell->writer & kAtomicFlag ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE;
      report_shared_race(worker, site, address, bytes, access, cell->write_site, writer, other_access,
                         kReportThreadRace, volatile_too(trace, cell->writer));
    }
  }
  if (access == OPB_ACCESS_LOAD) {
    note_shared_read(trace, cell, self, site);
    return;
  }
  bool other;
  uint16_t reader;
  if (access == OPB_ACCESS_STORE && readers_unordered(trace, cell, self, &other) &&
      !both_flags(trace, access, reader = reader_of(cell, other), self)) {
    report_shared_race(worker, site, address, bytes, access, other ? cell->other_site : cell->read_site,
                       reader & kThreadMask, OPB_ACCESS_LOAD, kReportThreadRace, volatile_too(trace, reader));
  }
  cell->write_interval = trace->interval;
  cell->write_site = site;
  cell->writer = (uint16_t)(self | (access == OPB_ACCESS_ATOMIC ? kAtomicFlag : 0) | (trace->is_volatile ? kVolatileFlag : 0));
  cell->write_clock = own_clock(trace, self);
}

static inline void check_global_cell(Worker* worker, Trace* trace, const GlobalMemory* memory, GlobalCell* cell,
                                     uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site) {
  if (__builtin_expect(trace->unwaited, 0)) check_launch_ahead(worker, cell, address, bytes, access, site);
  bool written = cell->writer >= trace->first_block;
  if (written && cell->writer != trace->block) {
    bool atomic_before = cell->write_site & 1;  // or volatile
    // Only plain writes race: atomic operations order themselves.
    bool flag = trace->is_volatile || access == OPB_ACCESS_ATOMIC;
    if (!atomic_before || (access == OPB_ACCESS_STORE && !flag)) {
      uint32_t other_access = atomic_before ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE;
      judge_global_race(worker, address, bytes, access, site, cell->writer, cell->write_site, other_access);
    }
  } else if (!cell->writer && !memory->initialised && access != OPB_ACCESS_STORE) {
    trace_report(worker, kReportUninitialisedGlobal, site, address, bytes, access, nullptr);
  }
  bool read = cell->reader >= trace->first_block;
  if (access == OPB_ACCESS_LOAD) {
    if (!read) {
      cell->reader = trace->block;
      cell->read_site = pack_site(trace, site, trace->is_volatile);
    }
    return;
  }
  bool flag = trace->is_volatile && cell->read_site & 1;
  if (access == OPB_ACCESS_STORE && read && cell->reader != trace->block && !flag) {
    judge_global_race(worker, address, bytes, access, site, cell->reader, cell->read_site, OPB_ACCESS_LOAD);
  }
  cell->writer = trace->block;
  cell->write_site = pack_site(trace, site, access == OPB_ACCESS_ATOMIC || trace->is_volatile);
}

static inline void check_global(Worker* worker, Trace* trace, GlobalMemory* memory, uintptr_t address, uint32_t bytes,
                                uint32_t access, uint32_t site) {
  uintptr_t offset = address - memory->start;
  uint32_t shift = shift_of(offset, bytes);
  if (shift < memory->shift) refine_global(memory, shift);
  GlobalCell* cell = memory->cells + (offset >> memory->shift);
  GlobalCell* last = memory->cells + ((offset + bytes - 1) >> memory->shift);
  SharedCell* threads = memory->threads + (offset >> memory->shift);
  if (access != OPB_ACCESS_LOAD) memory->followed = true;
  for (; cell <= last; ++cell, ++threads) {
    check_global_cell(worker, trace, memory, cell, address, bytes, access, site);
    if (memory->followed) check_threads(worker, trace, threads, address, bytes, access, site);
  }
}

// ---- fences and atomic operations between blocks

// Of each location the longest part of its log: lists stay as short as there are locations, however often they grow.
static void keep_longest(Acquired** list, uint32_t* count, uint32_t* capacity, Acquired seen) {
  for (uint32_t index = 0; index < *count; ++index) {
    Acquired* known = *list + index;
    if (known->location != seen.location) continue;
    if (known->length < seen.length) known->length = seen.length;
    return;
  }
  *append(list, count, capacity) = seen;
}

static void acquire(Trace* trace, Acquired seen) {
  keep_longest(&trace->acquired, &trace->acquired_count, &trace->acquired_capacity, seen);
}

// Where the number of an address stands, or would: linear probing, at most half full.
static uint32_t* location_slot(const Trace* trace, uintptr_t address) {
  uint32_t mask = trace->location_slot_count - 1;
  uint32_t slot = (uint32_t)(address * 0x9E3779B97F4A7C15u >> 32) & mask;
  while (trace->location_slots[slot] && trace->locations[trace->location_slots[slot] - 1].address != address) {
    slot = (slot + 1) & mask;
  }
  return trace->location_slots + slot;
}

static void double_location_slots(Trace* trace) {
  const uint32_t count = trace->location_slot_count ? 2 * trace->location_slot_count : 64;
  uint32_t* slots = (uint32_t*)allocate_zeros(count * sizeof(uint32_t));
  free(trace->location_slots);
  trace->location_slots = slots;
  trace->location_slot_count = count;
  for (uint32_t index = 0; index < trace->location_count; ++index) {
    *location_slot(trace, trace->locations[index].address) = index + 1;
  }
}

static uint32_t location_at(Trace* trace, uintptr_t address, bool create) {
  uint32_t known = trace->location_count ? *location_slot(trace, address) : 0;
  if (known) return known - 1;
  if (!create) return kNobody;
  if (2 * (trace->location_count + 1) > trace->location_slot_count) double_location_slots(trace);
  SyncLocation* fresh = append(&trace->locations, &trace->location_count, &trace->location_capacity);
  *fresh = {address, nullptr, 0, 0, nullptr, 0, 0, nullptr};
  return (*location_slot(trace, address) = trace->location_count) - 1;
}

// An atomic operation sees what others have published at its location, and publishes what this block did before its
// last fence, other blocks' publications that it has seen included. A volatile load only sees, a volatile store only tells.
static void synchronise_blocks(Trace* trace, uintptr_t address, bool sees, bool tells) {
  uint32_t index = location_at(trace, address, tells && trace->fences > 0);
  if (index == kNobody) return;
  SyncLocation* location = &trace->locations[index];
  if (sees && location->length) acquire(trace, {index, location->length});
  for (uint32_t link = 0; sees && link < location->link_count; ++link) acquire(trace, location->links[link]);
  if (!tells || !trace->fences) return;
  for (uint32_t other = 0; other < trace->acquired_count; ++other) {
    if (trace->acquired[other].location == index) continue;
    keep_longest(&location->links, &location->link_count, &location->link_capacity, trace->acquired[other]);
  }
  if (location->length && location->log[location->length - 1].block == trace->block) {
    location->log[location->length - 1].clock = trace->fences;
  } else {
    *append(&location->log, &location->length, &location->capacity) = {trace->block, trace->fences};
  }
}

// The same among the threads of one block.
static void synchronise_threads(Worker* worker, Trace* trace, uintptr_t address, bool sees, bool tells) {
  uint32_t self = worker->current;
  bool fenced = trace->fence_interval[self] == trace->interval && trace->fence_clock[self];
  uint32_t index = location_at(trace, address, tells && fenced);
  if (index == kNobody) return;
  ClockRow*& row = trace->locations[index].told;
  if (sees) trace_learn(worker, row);
  if (!tells || !fenced) return;
  if (!row) row = (ClockRow*)allocate_zeros(sizeof(ClockRow));
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);
  row->interval = trace->interval;
  trace->clocks_wide = trace->clocks_used[self / kLanes] = true;
  const uint16_t* known = trace->clocks[self];
  for (uint32_t other = 0; other < worker->threads; ++other) {
    uint16_t clock = other == self ? trace->fence_clock[self] : known[other];
    if (clock > row->at[other]) row->at[other] = clock;
  }
}

static void note_fence(Worker* worker, Trace* trace) {
  uint32_t self = worker->current;
  uint16_t* known = trace->clocks[self];
  trace->clocks_used[self / kLanes] = true;
  if (known[self] < kClockLimit) ++known[self];
  trace->fence_clock[self] = known[self];
  trace->fence_interval[self] = trace->interval;
}

static void forget_synchronisation(Trace* trace) {
  for (uint32_t index = 0; index < trace->location_count; ++index) {
    free(trace->locations[index].log);
    free(trace->locations[index].links);
    free(trace->locations[index].told);
  }
  trace->location_count = trace->acquired_count = 0;
  for (uint32_t slot = 0; slot < trace->location_slot_count; ++slot) trace->location_slots[slot] = 0;
}
