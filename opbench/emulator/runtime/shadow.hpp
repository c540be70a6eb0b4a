// Implements the shadow memory: finds races and reads of uninitialised memory.
//
// Each location has a cell with its last accesses (trace.hpp). Every access is compared with them: it races with an
// access of another thread or block that conflicts and does not happen before it. Then the access is recorded in the
// cell. Vector clocks order threads of one block, ordering.hpp orders blocks.
#pragma once
#include "ordering.hpp"

// ---- pending stores: a racing store of the value that is already there is only a note

// Returns whether the contested bytes are unchanged. Between blocks the value must also be one small number, as of a
// flag: blocks that compute the same elements twice are a mistake.
static bool stores_same_value(const PendingStore* store) {
  const unsigned char* now = (const unsigned char*)store->address;
  bool small = store->other.access != OPB_ACCESS_LOAD, first = true;
  for (uint32_t byte = 0; byte < store->bytes; ++byte) {
    if (!(store->contested >> byte & 1)) continue;
    if (now[byte] != store->before[byte]) return false;
    small &= first || now[byte] == 0;
    first = false;
  }
  return small || store->kind != kReportGlobalRace;
}

static __attribute__((noinline)) void report_pending(Worker* worker) {
  Trace* trace = worker->trace;
  uint32_t self = worker->current, count = trace->pending_count;
  trace->pending_count = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const PendingStore* store = &trace->pending[index];
    ReportKind kind = stores_same_value(store) ? kReportSameValue : store->kind;
    set_current(worker, store->thread);
    trace_report(worker, kind, store->site, store->address, store->bytes, store->access, &store->other);
    set_current(worker, self);
  }
}

// The bytes of memory that a cell covers.
struct CellRange {
  uintptr_t start;
  uint32_t bytes;
};

static uint32_t contested_bytes(CellRange cell, uintptr_t address, uint32_t bytes) {
  uintptr_t low = cell.start > address ? cell.start - address : 0, end = cell.start + cell.bytes - address;
  uintptr_t high = end < bytes ? end : bytes;
  return low < high ? ((1u << (high - low)) - 1) << low : 0;
}

static __attribute__((noinline)) void report_race(Worker* worker, ReportKind kind, uint32_t site, uintptr_t address,
                                                  uint32_t bytes, uint32_t access, const OtherAccess* other,
                                                  CellRange cell) {
  Trace* trace = worker->trace;
  bool later = access == OPB_ACCESS_STORE && !trace->report_at_once && bytes <= kPendingBytes &&
               (kind == kReportSharedRace || kind == kReportGlobalRace || kind == kReportThreadRace);
  // A wide store races with the same other store in several cells: one pending store covers all.
  const uint32_t contested = later ? contested_bytes(cell, address, bytes) : 0;
  for (uint32_t index = 0; later && index < trace->pending_count; ++index) {
    PendingStore* store = &trace->pending[index];
    bool known = store->kind == kind && store->address == address && store->other.access == other->access;
    if (!known || store->bytes != bytes || store->site != site || store->thread != worker->current) continue;
    store->contested |= contested;
    return;
  }
  if (!later || trace->pending_count == kPendingStores) {
    return trace_report(worker, kind, site, address, bytes, access, other);
  }
  PendingStore* store = &trace->pending[trace->pending_count++];
  *store = {kind, site, bytes, access, worker->current, address, contested, {}, *other};
  memcpy(store->before, (const void*)address, bytes);
}

// ---- shared memory: threads of one block, ordered by barriers, and within a warp by __syncwarp()

constexpr uint16_t kThreadMask = 0x3ff, kAtomicFlag = 0x8000, kSeveralLanes = 0x8000, kSeveralWarps = 0x4000;
constexpr uint16_t kBulkFlag = 0x4000;      // of a writer: a bulk copy that the thread started
constexpr uint16_t kVolatileFlag = 0x2000;  // of a writer or reader
constexpr uint16_t kCountsFlag = 0x1000;    // of a writer: an atomic addition
constexpr uint16_t kUnfencedFlag = 0x0800;  // of a writer: it has taken a lock without an acquire fence
constexpr uint16_t kNoUpdater = 0xffff;
// Flags of a report's `instructions`.
constexpr uint32_t kBothVolatile = 4, kBetweenBlocks = 8, kNarrowScope = 16, kUnacquired = 32, kGuarded = 64,
                   kTakenEarly = 128, kNarrowFence = 256;
constexpr uint32_t kCopyInFlight = ~0u;  // an interval later than all others: copies.hpp

// Returns whether the last write of a cell happens before this access by a flag, although clocks do not say so: this
// thread, or one that happens before it, has read what a releasing store wrote here; or two strong writes are in the
// order of a flag that this thread has read. The second needs no acquire fence, because neither a compiler nor a GPU
// does volatile accesses before the loop that polls the flag has ended. But a lock always needs its fence.
static __attribute__((noinline)) bool is_published_write(const Trace* trace, const SharedCell* cell, uintptr_t address,
                                                         uint32_t access, uint32_t self) {
  const uint32_t writer = cell->writer & kThreadMask;
  const bool strong = access == OPB_ACCESS_ATOMIC || trace->is_volatile;
  const VectorClock* seen = trace->pending_clocks[self];
  if (strong && cell->writer & (kAtomicFlag | kVolatileFlag) && seen && seen->interval == trace->interval &&
      seen->at[writer] > cell->write_clock && !holds_unfenced(trace, self, kBlockLevel)) {
    return true;
  }
  const uint32_t slot = trace->locations.count ? *location_slot(trace, address) : 0;
  if (!slot) return false;
  const SyncLocation& location = trace->locations.items[slot - 1];
  const auto is_last_write = [&](const ReleasingStore& store) {
    return store.interval == trace->interval && store.thread == writer && store.clock == cell->write_clock;
  };
  if (is_last_write(location.replaced)) return true;  // this access is the last releasing store
  const ReleasingStore& store = location.store;
  return is_last_write(store) && has_observed(trace, location, self) &&
         ordered(trace, writer, (uint16_t)(store.clock - store.steps), self);
}

// Returns kUnacquired if this thread has read the other one's release without an acquire fence, kGuarded if it has read
// any flag or lock: the race is then caused by a missing fence of a lock, not by a non-atomic update.
static uint32_t guards_of(const Trace* trace, uint32_t self, uintptr_t address, bool unacquired) {
  if (unacquired) return kUnacquired;
  const Guard& guard = trace->guards[self];
  return guard.block == trace->block && guard.address && guard.address != address ? kGuarded : 0;
}

static __attribute__((noinline)) void report_shared_race(Worker* worker, uint32_t site, uintptr_t address,
                                                         uint32_t bytes, uint32_t access, uint32_t other_site,
                                                         uint32_t other_thread, uint32_t other_access, ReportKind kind,
                                                         uint32_t instructions, CellRange cell) {
  const Trace* trace = worker->trace;
  const VectorClock* seen = trace->pending_clocks[worker->current];
  const bool plain = !trace->is_volatile && access != OPB_ACCESS_ATOMIC && other_access != OPB_ACCESS_ATOMIC;
  const bool unacquired = seen && seen->interval == trace->interval && seen->at[other_thread];
  OtherAccess other = {other_site,
                 opb_current.block,
                 worker->coordinates[other_thread],
                 other_thread / kLanes,
                 other_access,
                 instructions | (plain ? guards_of(trace, worker->current, address, unacquired) : 0)};
  report_race(worker, kind, site, address, bytes, access, &other, cell);
}

// Adds the last reader of a cell to the set of earlier readers, before another reader replaces it.
static __attribute__((noinline)) void store_reader(Trace* trace, SharedCell* cell) {
  AccessSets* sets = &trace->thread_sets;
  if (trace->thread_sets_interval != trace->interval || !sets->nodes.count) {
    reset_access_sets(sets);
    trace->thread_sets_interval = trace->interval;
  }
  uint32_t reader = cell->reader & (kThreadMask | kVolatileFlag);
  cell->readers = add_access(sets, cell->readers, reader, cell->read_clock, cell->read_site, true);
}

// Removes the earlier readers that happen before this one: a write that races with them also races with this one.
static __attribute__((noinline)) void settle_readers(Trace* trace, SharedCell* cell, uint32_t self) {
  const List<AccessNode>& nodes = trace->thread_sets.nodes;
  uint32_t all = cell->readers;
  bool dropped = false;
  for (uint32_t at = all; at; at = nodes.items[at].parent) {
    dropped |= ordered(trace, nodes.items[at].who & kThreadMask, (uint16_t)nodes.items[at].when, self);
  }
  if (!dropped) return;
  cell->readers = 0;
  for (uint32_t at = all; at; at = nodes.items[at].parent) {
    const AccessNode node = nodes.items[at];
    if (ordered(trace, node.who & kThreadMask, (uint16_t)node.when, self)) continue;
    cell->readers = add_access(&trace->thread_sets, cell->readers, node.who, node.when, node.site, false);
  }
}

static inline void note_shared_read(Trace* trace, SharedCell* cell, uint32_t self, uint32_t site) {
  uint16_t clock = own_clock(trace, self), flags = 0;
  if (cell->read_interval == trace->interval) {
    uint32_t reader = cell->reader & kThreadMask;
    flags = cell->reader & (kSeveralLanes | kSeveralWarps);
    if (ordered(trace, reader, cell->read_clock, self)) {
      flags &= kSeveralWarps;  // the warp has synchronised since the earlier reads by its lanes
      if (__builtin_expect(cell->readers, 0)) settle_readers(trace, cell, self);
    } else if (reader == self) {
      return;
    } else {
      const bool between_warps = reader / kLanes != self / kLanes;
      // A reader of another warp is kept: a report names it, because __syncwarp() does not cure its race.
      if (between_warps || !(flags & kSeveralWarps) || trace->clocks_wide) {
        cell->other_reader = (uint16_t)(reader | (cell->reader & kVolatileFlag));
        cell->other_clock = cell->read_clock;
        cell->other_site = cell->read_site;
      }
      flags |= between_warps ? kSeveralWarps : kSeveralLanes;
      if (__builtin_expect(trace->partial_barriers, 0)) store_reader(trace, cell);
    }
  } else {
    cell->readers = 0;
  }
  cell->read_interval = trace->interval;
  cell->read_site = site;
  cell->reader = (uint16_t)(self | flags | (trace->is_volatile ? kVolatileFlag : 0));
  cell->read_clock = clock;
}

struct Reader {
  uint16_t thread;  // the thread number, with kVolatileFlag for a volatile read
  uint32_t site;
};

static inline bool both_synchronise(const Trace* trace, uint32_t access, uint16_t other, uint32_t self);

// Returns whether a volatile store overwrites what an atomic operation of another thread has written, although its own
// thread cannot have seen that: then the order of the two is undefined, and one of them is lost.
static __attribute__((noinline)) bool overwrites_update(Worker* worker, const SharedCell* cell, uintptr_t address) {
  Trace* trace = worker->trace;
  if (!trace->is_volatile || trace->word & OPB_STRONG || !(cell->writer & kAtomicFlag)) return false;
  return cell->read_interval != trace->interval && is_changed_by_update(trace, address) &&
         !has_seen(worker, address, cell->writer & kThreadMask);
}

static __attribute__((noinline)) bool stored_reader_unordered(const Trace* trace, const SharedCell* cell,
                                                              uint32_t access, uint32_t self, Reader* found) {
  const List<AccessNode>& nodes = trace->thread_sets.nodes;
  for (uint32_t at = cell->readers; at; at = nodes.items[at].parent) {
    const AccessNode& node = nodes.items[at];
    uint32_t reader = node.who & kThreadMask;
    if (reader == self || ordered(trace, reader, (uint16_t)node.when, self)) continue;
    *found = {(uint16_t)node.who, node.site};
    if (!both_synchronise(trace, access, found->thread, self)) return true;
  }
  return false;
}

// Finds a reader of a cell whose read does not happen before this write, one of another warp first.
static inline bool reader_unordered(const Trace* trace, const SharedCell* cell, uint32_t access, uint32_t self,
                                    Reader* found) {
  if (cell->read_interval != trace->interval) return false;
  uint32_t reader = cell->reader & kThreadMask, others = cell->reader & (kSeveralLanes | kSeveralWarps);
  const uint16_t kept = kVolatileFlag | kThreadMask;
  Reader last = {(uint16_t)(cell->reader & kept), cell->read_site};
  Reader before = {(uint16_t)(cell->other_reader & kept), cell->other_site};
  const bool last_races = reader != self && !ordered(trace, reader, cell->read_clock, self) &&
                          !both_synchronise(trace, access, last.thread, self);
  if (last_races && (reader / kLanes != self / kLanes || !(others & kSeveralWarps))) {
    *found = last;
    return true;
  }
  uint32_t other = before.thread & kThreadMask;
  // Without partial barriers, only barriers of the block order warps.
  bool other_unordered = (others & kSeveralWarps && !trace->clocks_wide) ||
                         (others && other != self && !ordered(trace, other, cell->other_clock, self));
  if (other_unordered && !both_synchronise(trace, access, before.thread, self)) {
    *found = before;
    return true;
  }
  if (last_races) {
    *found = last;
    return true;
  }
  return cell->readers && stored_reader_unordered(trace, cell, access, self, found);
}

// Splits all cells to the size of the smallest access, so that threads that write neighbouring halves do not race.
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

// Returns whether two accesses synchronise instead of racing: both are atomic, or both are volatile and by different
// warps. Within a warp, volatile accesses rely on lanes in lockstep, which GPUs since Volta do not guarantee.
static inline bool both_synchronise(const Trace* trace, uint32_t access, uint16_t other, uint32_t self) {
  if (!trace->is_volatile && access != OPB_ACCESS_ATOMIC) return false;
  if (!(other & (kVolatileFlag | kAtomicFlag))) return false;
  bool atomic = access == OPB_ACCESS_ATOMIC || trace->word & OPB_STRONG || other & kAtomicFlag;
  return atomic || (other & kThreadMask) / kLanes != self / kLanes;
}

// Returns whether two writes synchronise instead of racing. Two volatile stores race, because their order is undefined.
static inline bool both_writes_synchronise(const Trace* trace, uint32_t access, uint16_t writer, uint32_t self) {
  bool stores = access == OPB_ACCESS_STORE && !(trace->word & OPB_STRONG) && !(writer & kAtomicFlag);
  return !stores && both_synchronise(trace, access, writer, self);
}

// Returns whether the last write of a cell, by another thread, and this access have no order in some run. `early` then
// says whether a lock without an acquire fence is the reason.
static inline bool may_precede(Worker* worker, const SharedCell* cell, uintptr_t address, uint32_t access,
                               uint32_t self, uint32_t* early) {
  const Trace* trace = worker->trace;
  const uint32_t writer = cell->writer & kThreadMask;
  if (!ordered(trace, writer, cell->write_clock, self)) {
    return (!both_writes_synchronise(trace, access, cell->writer, self) ||
            (access == OPB_ACCESS_STORE && overwrites_update(worker, cell, address))) &&
           !is_published_write(trace, cell, address, access, self);
  }
  if (__builtin_expect(!(cell->writer & kUnfencedFlag), 1)) return false;
  if (both_writes_synchronise(trace, access, cell->writer, self)) return false;
  if (lock_without_acquire_fence(trace, self, trace->block, writer) == kNobody) return false;
  *early = kTakenEarly;
  return true;
}

static inline uint16_t writer_flags(const Trace* trace, uint32_t access) {
  if (access != OPB_ACCESS_ATOMIC && !trace->is_volatile) return 0;
  bool atomic = access == OPB_ACCESS_ATOMIC || trace->word & OPB_STRONG;
  return (atomic ? kAtomicFlag : 0) | (trace->is_volatile ? kVolatileFlag : 0) |
         (trace->word & OPB_COUNTS ? kCountsFlag : 0);
}

// Records a write. The previous atomic addition by another thread becomes `updater`, unless it happens before this one.
static inline void note_writer(Trace* trace, SharedCell* cell, uint32_t access, uint32_t self, uint32_t site) {
  uint16_t flags = writer_flags(trace, access), writer = cell->writer;
  if (__builtin_expect(trace->locks_used, 0) && note_unfenced_store(trace, self, kBlockLevel)) flags |= kUnfencedFlag;
  bool counted = cell->write_interval == trace->interval && writer & kCountsFlag;
  if (!(counted && flags & kCountsFlag)) {
    cell->updater = kNoUpdater;
  } else if ((writer & kThreadMask) != self) {
    bool before = ordered(trace, writer & kThreadMask, cell->write_clock, self);
    cell->updater = before ? kNoUpdater : writer & kThreadMask;
    cell->updater_clock = cell->write_clock;
  }
  cell->write_interval = trace->interval;
  cell->write_site = site;
  cell->writer = (uint16_t)(self | flags);
  cell->write_clock = own_clock(trace, self);
}

// Returns whether a plain load reads a counter that this thread has added to while another thread may still be adding.
static inline bool reads_back_too_early(const Trace* trace, const SharedCell* cell, uint32_t self) {
  if (cell->updater == kNoUpdater || trace->is_volatile || !(cell->writer & kCountsFlag)) return false;
  uint32_t writer = cell->writer & kThreadMask;
  if (writer != self) return cell->updater == self && !ordered(trace, writer, cell->write_clock, self);
  return !ordered(trace, cell->updater, cell->updater_clock, self);
}

// Returns kBothVolatile if both accesses are volatile, for the report's advice on code written for GPUs before Volta.
static inline uint32_t both_volatile_flag(const Trace* trace, uint16_t other) {
  return trace->is_volatile && other & kVolatileFlag && !(other & kAtomicFlag) ? kBothVolatile : 0;
}

static inline void check_shared_cell(Worker* worker, Trace* trace, SharedCell* cell, uintptr_t address, uint32_t bytes,
                                     uint32_t access, uint32_t site) {
  uint32_t self = worker->current, early = 0;
  auto report_cell_race = [&](uint32_t other_site, uint16_t other, uint32_t other_access, ReportKind kind) {
    CellRange range = {(uintptr_t)worker->shared_base + ((cell - trace->shared_cells) << trace->shared_shift),
                       1u << trace->shared_shift};
    uint32_t instructions = kind == kReportSharedRace ? 2 | both_volatile_flag(trace, other) : 2;
    report_shared_race(worker, site, address, bytes, access, other_site, other & kThreadMask, other_access, kind,
                       instructions | early, range);
  };
  if (cell->write_interval == trace->interval) {
    uint32_t writer = cell->writer & kThreadMask;
    bool both_atomic = access == OPB_ACCESS_ATOMIC && cell->writer & kAtomicFlag;
    if (writer != self && !both_atomic && may_precede(worker, cell, address, access, self, &early)) {
      report_cell_race(cell->write_site, cell->writer,
                       cell->writer & kAtomicFlag ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE,
                       cell->writer & kBulkFlag ? kReportUnfinishedBulk : kReportSharedRace);
    } else if (access == OPB_ACCESS_LOAD && reads_back_too_early(trace, cell, self)) {
      report_cell_race(cell->write_site, cell->updater, OPB_ACCESS_ATOMIC, kReportSharedRace);
    }
  } else if (access != OPB_ACCESS_STORE && cell->write_interval < trace->block_interval) {
    trace_report(worker, kReportUninitialisedShared, site, address, bytes, access, nullptr);
  } else if (__builtin_expect(cell->write_interval == kCopyInFlight, 0)) {
    report_cell_race(cell->write_site, cell->writer, OPB_ACCESS_STORE,
                     cell->writer & kBulkFlag ? kReportUnfinishedBulk : kReportUnfinishedCopy);
  }
  if (access == OPB_ACCESS_LOAD) {
    note_shared_read(trace, cell, self, site);
    return;
  }
  Reader reader;
  if (reader_unordered(trace, cell, access, self, &reader)) {
    report_cell_race(reader.site, reader.thread, OPB_ACCESS_LOAD, kReportSharedRace);
  }
  if (__builtin_expect(cell->async_read, 0) && cell->async_read <= trace->async_reads.count) {
    const AsyncRead* read = &trace->async_reads.items[cell->async_read - 1];
    const bool after_wait = read->waited_interval != trace->interval || read->thread == self ||
                            ordered(trace, read->thread, read->waited_clock, self);
    if (!read->done || !after_wait) {
      report_cell_race(read->site, (uint16_t)read->thread, OPB_ACCESS_LOAD, kReportEarlyOverwrite);
    }
  }
  note_writer(trace, cell, access, self, site);
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

// ---- global memory: accesses by blocks of one launch, ordered only by fences and flags (ordering.hpp)

// Flags of a site in a global cell.
enum SiteFlags : uint32_t {
  kVolatileSite = 1,
  kAtomicSite = 2,  // an atomic operation, or an atomic load or store
  kCountsSite = 4,
  kBlockScopeSite = 8,
  kClusterScopeSite = 16,
  kReadsBackSite = 32,  // a plain load of a location to which its own block has added atomically
  kUnfencedSite = 64,   // a write by a thread that has taken a lock without an acquire fence
};
constexpr uint32_t kSiteBits = 7;

static inline uint32_t pack_site(Trace* trace, uint32_t site, uint32_t access) {
  uint32_t flags = 0;
  if (__builtin_expect(access == OPB_ACCESS_ATOMIC || trace->is_volatile, 0)) {
    const uint32_t word = trace->word;
    flags = access == OPB_ACCESS_ATOMIC || word & OPB_STRONG ? kAtomicSite : kVolatileSite;
    if (word & OPB_COUNTS) flags |= kCountsSite;
    if (word & (OPB_BLOCK_SCOPE | OPB_CLUSTER_SCOPE)) {
      flags |= word & OPB_BLOCK_SCOPE ? kBlockScopeSite : kClusterScopeSite;
    }
  }
  if (__builtin_expect(trace->locks_used, 0) && access != OPB_ACCESS_LOAD && access != OPB_ACCESS_ATOMIC &&
      note_unfenced_store(trace, opb_worker->current, kDeviceLevel)) {
    flags |= kUnfencedSite;
  }
  return site << kSiteBits | flags;
}

static inline bool is_strong(uint32_t packed) { return packed & (kVolatileSite | kAtomicSite); }

// Returns whether both accesses are volatile or atomic with scopes that include both blocks, so that they do not race.
static bool is_strong_pair(const Worker* worker, uint32_t left, uint32_t right, uint32_t block) {
  if (!is_strong(left) || !is_strong(right) || (left | right) & kBlockScopeSite) return false;
  return !((left | right) & kClusterScopeSite) || same_cluster(worker, block);
}

static uint3 block_of_number(const Worker* worker, uint32_t number) {
  const Launch* launch = worker->launch;
  uint64_t index = block_at(launch, number - worker->trace->first_block), row = index / launch->grid.x;
  return {(uint32_t)(index % launch->grid.x), (uint32_t)(row % launch->grid.y), (uint32_t)(row / launch->grid.y)};
}

// An access of a block to one cell of global memory, to compare with earlier ones.
struct GlobalAccess {
  Worker* worker;
  const GlobalMemory* memory;
  GlobalCell* cell;
  const SharedCell* threads;
  uintptr_t address;
  uint32_t bytes, access, site, packed;
};

static void report_global_race(const GlobalAccess& now, ReportKind kind, uint32_t block, uint32_t moment,
                               uint32_t packed, uint32_t other_access, uint32_t flags = 0) {
  const uint32_t shift = now.memory->shift;
  CellRange range = {now.memory->start + ((uintptr_t)(now.cell - now.memory->cells) << shift), 1u << shift};
  bool both_volatile = now.packed & packed & kVolatileSite;
  bool narrow =
      is_strong(now.packed) && is_strong(packed) && (now.packed | packed) & (kBlockScopeSite | kClusterScopeSite);
  const uint32_t self = now.worker->current;
  const bool plain = !is_strong(now.packed) && !is_strong(packed);
  const bool unacquired =
      has_acquired(now.worker, now.worker->trace->unacquired_by[self], block, {now.address, moment, false, 0, 0, 0});
  OtherAccess other = {packed >> kSiteBits,
                 block_of_number(now.worker, block),
                 {0, 0, 0},
                 0,
                 other_access,
                 kBetweenBlocks | flags | (both_volatile ? kBothVolatile : 0) | (narrow ? kNarrowScope : 0) |
                     (plain ? guards_of(now.worker->trace, self, now.address, unacquired) : 0)};
  report_race(now.worker, kind, now.site, now.address, now.bytes, now.access, &other, range);
}

static inline bool is_ordered(const GlobalAccess& now, uint32_t moment, uint32_t block) {
  return ordered_between_blocks(now.worker, block, {now.address, moment, false, 0, 0, 0});
}

static EarlierAccess last_write(const GlobalAccess& now) {
  const SharedCell* last = now.threads;
  return {now.address,          now.cell->writer, true, (uint32_t)last->writer & kThreadMask,
          last->write_interval, last->write_clock};
}

// Returns whether the last write of a cell, whose thread is known, happens before this access.
static bool is_write_ordered(const GlobalAccess& now, uint32_t block, uint32_t except = kNobody) {
  return ordered_between_blocks(now.worker, block, last_write(now), except);
}

// Returns whether two strong writes of a cell are in the order of a flag that this thread has read without an acquire
// fence, as in is_published_write().
static bool is_strong_write_ordered(const GlobalAccess& now, uint32_t block) {
  const Trace* trace = now.worker->trace;
  const uint32_t self = now.worker->current;
  if (!is_strong(now.packed) || !is_strong(now.cell->write_site)) return false;
  return !holds_unfenced(trace, self, kDeviceLevel) &&
         has_acquired(now.worker, trace->unacquired_by[self], block, last_write(now),
                      location_at(trace->whole, now.address, false));
}

// Returns whether this thread reads volatile data after a flag that another block has set after a fence of block scope:
// the fence shows that the data must come before the flag, but does not order them for other blocks.
static bool is_published_by_block_fence(const GlobalAccess& now, uint32_t block) {
  const Trace* trace = now.worker->trace;
  if (!trace->whole->releases_within_block || !(now.packed & now.cell->write_site & kVolatileSite)) return false;
  const uint32_t self = now.worker->current, own = location_at(now.worker->trace->whole, now.address, false);
  const EarlierAccess write = last_write(now);
  const auto seen = [&](const List<Acquired>& list) { return has_acquired(now.worker, list, block, write, own, true); };
  return (seen(trace->acquired) || seen(trace->acquired_by[self]) || seen(trace->unacquired_by[self])) &&
         !is_write_ordered(now, block) && !is_strong_write_ordered(now, block);
}

// Returns whether this volatile store overwrites what an atomic operation of another block has written, although its
// own block has not read the location.
static bool overwrites_update_of_block(const GlobalAccess& now) {
  const GlobalCell* cell = now.cell;
  Trace* trace = now.worker->trace;
  if (!(now.packed & kVolatileSite) || !(cell->write_site & kAtomicSite)) return false;
  const bool read = cell->reader >= trace->first_moment;
  const auto contains_own = [&](uint32_t set) {
    const List<AccessNode>& nodes = trace->whole->block_sets.nodes;
    for (uint32_t at = set; at; at = nodes.items[at].parent) {
      if (nodes.items[at].who == trace->block) return true;
    }
    return false;
  };
  if (read && (block_of(trace, cell->reader) == trace->block || contains_own(cell->readers))) return false;
  return is_changed_by_update(trace, now.address) && !contains_own(cell->updaters) &&
         !has_polled(now.worker, now.address);
}

// Returns whether another block wrote in a critical section before an acquire fence, and only its lock orders it with
// this access.
static bool is_written_before_acquire_fence(const GlobalAccess& now, uint32_t block) {
  if (__builtin_expect(!(now.cell->write_site & kUnfencedSite), 1)) return false;
  const uint32_t lock = lock_without_acquire_fence(now.worker->trace, now.worker->current, block, kNobody);
  return lock != kNobody && !is_write_ordered(now, block, lock);
}

static uint32_t writer_access(uint32_t packed) { return packed & kAtomicSite ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE; }

// Checks a plain load of a location that other blocks update atomically. It is a race if the block reads a counter that
// it has added to, because it may miss additions of others. Otherwise it is a note: an approximate value may be enough.
static void judge_plain_read(const GlobalAccess& now) {
  const GlobalCell* cell = now.cell;
  const Trace* trace = now.worker->trace;
  const uint32_t writer = block_of(trace, cell->writer);
  const List<AccessNode>& nodes = trace->whole->block_sets.nodes;
  bool own = writer == trace->block, counts = cell->write_site & kCountsSite;
  uint32_t other_block = kNobody, other_site = 0, moment = cell->writer;
  if (!own && !is_write_ordered(now, writer)) other_block = writer, other_site = cell->write_site;
  for (uint32_t at = cell->updaters; at; at = nodes.items[at].parent) {
    const AccessNode& node = nodes.items[at];
    if (node.who == trace->block) {
      own = true;
    } else if (other_block == kNobody && !is_ordered(now, node.when, node.who)) {
      other_block = node.who, other_site = node.site, moment = node.when;
    }
  }
  if (other_block == kNobody) return;
  ReportKind kind = own && counts ? kReportGlobalRace : kReportPlainRead;
  report_global_race(now, kind, other_block, moment, other_site, writer_access(other_site));
}

static __attribute__((noinline)) void judge_read(const GlobalAccess& now) {
  const GlobalCell* cell = now.cell;
  const uint32_t writer = block_of(now.worker->trace, cell->writer);
  const bool strong = is_strong(now.packed);
  if (is_strong(cell->write_site) && !strong) return judge_plain_read(now);
  if (writer == now.worker->trace->block) return;
  if (is_strong_pair(now.worker, now.packed, cell->write_site, writer)) {
    if (is_published_by_block_fence(now, writer)) {
      report_global_race(now, kReportGlobalRace, writer, cell->writer, cell->write_site, OPB_ACCESS_STORE,
                         kNarrowFence);
    }
    return;
  }
  const bool early = is_written_before_acquire_fence(now, writer);
  if (early || !is_write_ordered(now, writer)) {
    report_global_race(now, kReportGlobalRace, writer, cell->writer, cell->write_site, writer_access(cell->write_site),
                       early ? kTakenEarly : 0);
  }
}

static void judge_readers(const GlobalAccess& now) {
  const GlobalCell* cell = now.cell;
  const Trace* trace = now.worker->trace;
  const List<AccessNode>& nodes = trace->whole->block_sets.nodes;
  AccessNode reader = {cell->readers, block_of(trace, cell->reader), cell->reader, cell->read_site};
  for (;; reader = nodes.items[reader.parent]) {
    // An atomic operation races only with loads of a counter to which their own block has added.
    bool meets = now.access == OPB_ACCESS_STORE ? !is_strong_pair(now.worker, now.packed, reader.site, reader.who)
                                                : now.packed & kCountsSite && reader.site & kReadsBackSite;
    if (meets && reader.who != trace->block && !is_ordered(now, reader.when, reader.who)) {
      report_global_race(now, kReportGlobalRace, reader.who, reader.when, reader.site, OPB_ACCESS_LOAD);
      return;
    }
    if (!reader.parent) return;
  }
}

static void judge_writer(const GlobalAccess& now) {
  GlobalCell* cell = now.cell;
  Trace* trace = now.worker->trace;
  const uint32_t writer = block_of(trace, cell->writer);
  const bool own = writer == trace->block, pair = is_strong_pair(now.worker, now.packed, cell->write_site, writer);
  const bool stores = now.access == OPB_ACCESS_STORE;
  // The order of two volatile stores is undefined.
  const bool both_stored = stores && now.packed & cell->write_site & kVolatileSite;
  const bool meets = !own && (!pair || both_stored || (stores && overwrites_update_of_block(now)));
  if ((meets || (!own && !stores)) && !is_write_ordered(now, writer)) {
    if (meets && !is_strong_write_ordered(now, writer)) {
      report_global_race(now, kReportGlobalRace, writer, cell->writer, cell->write_site,
                         writer_access(cell->write_site));
    }
    if (!stores && cell->write_site & kAtomicSite) {
      cell->updaters = add_access(&trace->whole->block_sets, cell->updaters, writer, cell->writer, cell->write_site,
                                  now.worker->team->size > 1);
    }
  } else if (meets && is_written_before_acquire_fence(now, writer)) {
    report_global_race(now, kReportGlobalRace, writer, cell->writer, cell->write_site, writer_access(cell->write_site),
                       kTakenEarly);
  }
  if (!stores) return;
  // If this block has just updated the location atomically, all earlier updates happen before its store.
  const List<AccessNode>& nodes = trace->whole->block_sets.nodes;
  bool updated = own && cell->write_site & kAtomicSite;
  for (uint32_t at = cell->updaters; at && !updated && !is_strong(now.packed); at = nodes.items[at].parent) {
    const AccessNode& node = nodes.items[at];
    if (node.who == trace->block || is_ordered(now, node.when, node.who)) continue;
    report_global_race(now, kReportGlobalRace, node.who, node.when, node.site, OPB_ACCESS_ATOMIC);
    break;
  }
  cell->updaters = 0;
}

static __attribute__((noinline)) void judge_write(const GlobalAccess& now) {
  GlobalCell* cell = now.cell;
  const uint32_t first = now.worker->trace->first_moment;
  if (cell->writer >= first) judge_writer(now);
  if (cell->reader >= first) {
    judge_readers(now);
    if (now.access == OPB_ACCESS_STORE) cell->reader = cell->readers = 0;
  }
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
  GlobalCell* fine = (GlobalCell*)map_dense_zeros((count * pieces + 16) * sizeof(GlobalCell));
  SharedCell* fine_threads = (SharedCell*)map_dense_zeros((count * pieces + 16) * sizeof(SharedCell));
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

// Before griddepcontrol.wait, a previous launch may not have written yet, and may still read what this launch
// overwrites.
static __attribute__((noinline)) void check_launch_ahead(Worker* worker, const GlobalCell* cell, uintptr_t address,
                                                         uint32_t bytes, uint32_t access, uint32_t site) {
  const Trace* trace = worker->trace;
  bool written = cell->writer && cell->writer < trace->first_moment;
  bool read = access != OPB_ACCESS_LOAD && cell->reader && cell->reader < trace->first_moment;
  if (!written && !read) return;
  uint32_t packed = written ? cell->write_site : cell->read_site;
  OtherAccess other = {packed >> kSiteBits, {0, 0, 0}, {0, 0, 0}, 0, written ? OPB_ACCESS_STORE : OPB_ACCESS_LOAD, 0};
  trace_report(worker, kReportMissingWait, site, address, bytes, access, &other);
}

// Checks for races between threads of one block, as in shared memory. A plain load of a location that others update
// atomically is no race unless the thread reads back its own addition.
static inline void check_threads(Worker* worker, Trace* trace, const GlobalMemory* memory, SharedCell* cell,
                                 uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site) {
  uint32_t self = worker->current, early = 0;
  auto report_cell_race = [&](uint32_t other_site, uint16_t other, uint32_t other_access) {
    CellRange range = {memory->start + ((uintptr_t)(cell - memory->threads) << memory->shift), 1u << memory->shift};
    report_shared_race(worker, site, address, bytes, access, other_site, other & kThreadMask, other_access,
                       kReportThreadRace, both_volatile_flag(trace, other) | early, range);
  };
  if (cell->write_interval == trace->interval) {
    uint32_t writer = cell->writer & kThreadMask;
    bool atomic = cell->writer & kAtomicFlag && access != OPB_ACCESS_STORE;
    if (writer != self && !atomic && may_precede(worker, cell, address, access, self, &early)) {
      report_cell_race(cell->write_site, cell->writer,
                       cell->writer & kAtomicFlag ? OPB_ACCESS_ATOMIC : OPB_ACCESS_STORE);
    } else if (access == OPB_ACCESS_LOAD && reads_back_too_early(trace, cell, self)) {
      report_cell_race(cell->write_site, cell->updater, OPB_ACCESS_ATOMIC);
    }
  }
  if (access == OPB_ACCESS_LOAD) {
    note_shared_read(trace, cell, self, site);
    return;
  }
  Reader reader;
  if (access == OPB_ACCESS_STORE && reader_unordered(trace, cell, access, self, &reader)) {
    report_cell_race(reader.site, reader.thread, OPB_ACCESS_LOAD);
  }
  note_writer(trace, cell, access, self, site);
}

// Records a block's read in place of an earlier one, which goes to the set of readers unless it happens before this
// one.
static __attribute__((noinline)) void note_global_read(Worker* worker, Trace* trace, GlobalCell* cell,
                                                       uintptr_t address, uint32_t packed) {
  const uint32_t before = cell->reader, reader = block_of(trace, before);
  const bool teams = worker->team->size > 1;
  bool kept;
  if (reader == trace->block) {
    kept = is_strong(packed) && !is_strong(cell->read_site);
  } else {
    const bool alone = !teams && !trace->acquired.count && !trace->acquirers.count;
    kept = alone || !ordered_between_blocks(worker, reader, {address, before, false, 0, 0, 0});
  }
  if (kept) {
    AccessSets* sets = &trace->whole->block_sets;
    const AccessStep& last = sets->last;
    // Neighbouring cells usually have the same history.
    const bool known = last.to && last.from == cell->readers && last.when == before && last.site == cell->read_site;
    cell->readers = known ? last.to : add_access(sets, cell->readers, reader, before, cell->read_site, teams);
  }
  cell->reader = trace->moment;
  cell->read_site = packed;
}

static inline void check_global_cell(Worker* worker, Trace* trace, const GlobalMemory* memory, GlobalCell* cell,
                                     SharedCell* threads, uintptr_t address, uint32_t bytes, uint32_t access,
                                     uint32_t site) {
  if (__builtin_expect(trace->previous_may_run, 0)) check_launch_ahead(worker, cell, address, bytes, access, site);
  const uint32_t moment = trace->moment;
  const bool written = cell->writer >= trace->first_moment;
  if (access == OPB_ACCESS_LOAD) {
    uint32_t packed = pack_site(trace, site, access);
    if (written) {
      if (cell->writer != moment || cell->updaters) {
        judge_read({worker, memory, cell, threads, address, bytes, access, site, packed});
      }
      if (__builtin_expect(cell->write_site & kCountsSite, 0) && !is_strong(packed) &&
          block_of(trace, cell->writer) == trace->block) {
        packed |= kReadsBackSite;
      }
    } else if (!cell->writer && !memory->initialised) {
      trace_report(worker, kReportUninitialisedGlobal, site, address, bytes, access, nullptr);
    }
    // The first read of a moment covers the later ones, unless a later one is plain or reads back and the first does
    // not.
    if (cell->reader == moment && (packed & kReadsBackSite) <= (cell->read_site & kReadsBackSite) &&
        (!is_strong(cell->read_site) || is_strong(packed))) {
      return;
    }
    if (cell->reader >= trace->first_moment) {
      return note_global_read(worker, trace, cell, address, packed);
    }
    cell->readers = 0;
    cell->reader = moment;
    cell->read_site = packed;
    return;
  }
  const uint32_t packed = pack_site(trace, site, access);
  const bool read = cell->reader >= trace->first_moment;
  if ((written && (cell->writer != moment || cell->updaters)) || (read && (cell->reader != moment || cell->readers))) {
    judge_write({worker, memory, cell, threads, address, bytes, access, site, packed});
  }
  if (!cell->writer && !memory->initialised && access == OPB_ACCESS_ATOMIC) {
    trace_report(worker, kReportUninitialisedGlobal, site, address, bytes, access, nullptr);
  }
  if (!written) cell->updaters = 0;
  cell->writer = moment;
  cell->write_site = packed;
}

static inline void check_global(Worker* worker, Trace* trace, GlobalMemory* memory, uintptr_t address, uint32_t bytes,
                                uint32_t access, uint32_t site) {
  uintptr_t offset = address - memory->start;
  uint32_t shift = shift_of(offset, bytes);
  if (shift < memory->shift) refine_global(memory, shift);
  GlobalCell* cell = memory->cells + (offset >> memory->shift);
  GlobalCell* last = memory->cells + ((offset + bytes - 1) >> memory->shift);
  SharedCell* threads = memory->threads + (offset >> memory->shift);
  if (access != OPB_ACCESS_LOAD) memory->tracks_threads = true;
  for (; cell <= last; ++cell, ++threads) {
    check_global_cell(worker, trace, memory, cell, threads, address, bytes, access, site);
    if (memory->tracks_threads) check_threads(worker, trace, memory, threads, address, bytes, access, site);
  }
}

static void map_cells(GlobalMemory* memory, size_t cells, void* (*map)(size_t) = map_dense_zeros) {
  memory->cells = (GlobalCell*)map(cells * sizeof(GlobalCell));
  memory->threads = (SharedCell*)map(cells * sizeof(SharedCell));
}

static void unmap_cells(GlobalMemory* memory) {
  size_t cells = ((memory->end - memory->start + (1u << memory->shift) - 1) >> memory->shift) + 16;
  if (memory->cells) munmap(memory->cells, cells * sizeof(GlobalCell));
  if (memory->threads) munmap(memory->threads, cells * sizeof(SharedCell));
}

// ---- distributed shared memory of a cluster: accesses by different blocks are checked like those of global memory

Trace* trace_of(const Worker* worker);

// Called before a cluster begins: no block has accessed the shared memory yet.
static void forget_cluster_memory(Worker* owner) {
  Trace* trace = trace_of(owner);
  if (!trace || !trace->cluster_memory.cells) return;
  unmap_cells(&trace->cluster_memory);
  trace->cluster_memory = {};
  memset(trace->remote, 0, sizeof trace->remote);
}

static GlobalMemory* cluster_memory_of(Worker* owner) {
  GlobalMemory* memory = &owner->trace->cluster_memory;
  if (!memory->cells) {
    const uintptr_t base = (uintptr_t)owner->shared_base;
    *memory = {base, base + owner->shared_bytes, true, true, 2, nullptr, nullptr, false};
    map_cells(memory, (owner->shared_bytes >> 2) + 17, map_zeros);
  }
  return memory->cells && memory->threads ? memory : nullptr;
}

static __attribute__((noinline)) void check_cluster_shared(Worker* worker, Worker* owner, uintptr_t address,
                                                           uint32_t bytes, uint32_t access, uint32_t site) {
  Trace* trace = worker->trace;
  GlobalMemory* memory = cluster_memory_of(owner);
  if (!memory) return;
  const uintptr_t offset = address - memory->start;
  const uint32_t shift = shift_of(offset, bytes);
  if (shift < memory->shift) refine_global(memory, shift);
  GlobalCell* cell = memory->cells + (offset >> memory->shift);
  const GlobalCell* last = memory->cells + ((offset + bytes - 1) >> memory->shift);
  SharedCell* threads = memory->threads + (offset >> memory->shift);
  for (; cell <= last; ++cell, ++threads) {
    check_global_cell(worker, trace, memory, cell, threads, address, bytes, access, site);
    if (access != OPB_ACCESS_LOAD) note_writer(trace, threads, access, worker->current, site);
  }
  if (owner != worker && worker->rank < kMaxCluster) {
    owner->trace->remote[worker->rank] = {trace->moment, site, access, opb_current.block, opb_current.thread};
  }
}

// Checks that accesses by other blocks of the cluster happen before the end of the block that owns the shared memory.
static void check_cluster_exit(Worker* worker) {
  Trace* trace = worker->trace;
  for (uint32_t rank = 0; rank < kMaxCluster && rank < worker->team->size; ++rank) {
    const RemoteAccess& remote = trace->remote[rank];
    if (!remote.moment) continue;
    const uint32_t block = block_of(trace, remote.moment), self = worker->current;
    const EarlierAccess earlier = {0, remote.moment, false, 0, 0, 0};
    bool known = ordered_between_blocks(worker, block, earlier);
    for (uint32_t acquirer : trace->acquirers) {
      worker->current = acquirer;
      known = known || ordered_between_blocks(worker, block, earlier);
    }
    worker->current = self;
    if (known) continue;
    Report fresh = blank_report(worker, kReportClusterExit,
                                "shared memory of another block is accessed, which may have ended by then\n"
                                "Nothing orders the access before the end of the block that owns the memory.");
    fresh.program_counter = remote.site;
    fresh.block = remote.block, fresh.thread = remote.thread;
    fresh.access = remote.access;
    add_report(&fresh);
  }
}
