// Implements happens-before by fences and flags, between blocks and between the threads of a block.
//
// A release pattern is a fence followed by a store or atomic operation, or a releasing operation: its location records
// a Release with the accesses that happen before it. An acquire pattern is a load or atomic operation that reads the
// location, followed by a fence, or an acquiring operation: the thread then knows these releases. shadow.hpp asks
// ordered_between_blocks() whether an earlier access happens before the current one. __syncthreads() counts as the
// acquire fence of a thread that has read a flag, because NVIDIA's sample threadFenceReduction relies on that.
#pragma once
#include "access_sets.hpp"

constexpr uint16_t kClockLimit = 0xffff;

static inline uint16_t own_clock(const Trace* trace, uint32_t thread) { return trace->clocks[thread][thread]; }

static inline uint32_t block_of(const Trace* trace, uint32_t moment) {
  const Trace* whole = trace->whole;
  return whole->blocks_of_moments.items[moment - whole->first_moment];
}

static void begin_moment(Trace* trace) {
  Trace* whole = trace->whole;
  trace->moment = whole->next_moment++;
  whole->blocks_of_moments.add(trace->block);
}

// The blocks of a cooperative launch are one team, but no cluster.
static inline bool same_cluster(const Worker* worker, uint32_t block) {
  const Trace* trace = worker->trace;
  uint32_t size = worker->launch->cooperative ? 1 : cluster_size(worker->launch);
  return (block - trace->first_block) / size == (trace->block - trace->first_block) / size;
}

// ---- locations

// Adds acquired releases to a list, which keeps one entry per location and scope: the longest part of the log.
static void merge_acquired(List<Acquired>* list, Acquired seen) {
  for (Acquired& known : *list) {
    if (known.location != seen.location || known.within_cluster != seen.within_cluster) continue;
    if (known.length < seen.length) known.length = seen.length;
    return;
  }
  list->add(seen);
}

// Returns the hash slot of an address, or the free one for it: linear probing in a table at most half full.
static uint32_t* location_slot(const Trace* trace, uintptr_t address) {
  uint32_t mask = trace->location_slot_count - 1;
  uint32_t slot = (uint32_t)(address * 0x9E3779B97F4A7C15u >> 32) & mask;
  while (trace->location_slots[slot] && trace->locations.items[trace->location_slots[slot] - 1].address != address) {
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
  for (uint32_t index = 0; index < trace->locations.count; ++index) {
    *location_slot(trace, trace->locations[index].address) = index + 1;
  }
}

static uint32_t location_at(Trace* trace, uintptr_t address, bool create) {
  uint32_t known = trace->locations.count ? *location_slot(trace, address) : 0;
  if (known) return known - 1;
  if (!create) return kNobody;
  if (2 * (trace->locations.count + 1) > trace->location_slot_count) double_location_slots(trace);
  trace->locations.add({address, {}, {}, nullptr, {}, {}, {}});
  return (*location_slot(trace, address) = trace->locations.count) - 1;
}

// Returns whether an access by thread `earlier` at a clock happens before the current access by `later`, in one
// interval.
static inline bool ordered(const Trace* trace, uint32_t earlier, uint16_t clock, uint32_t later) {
  if (!trace->clocks_wide && earlier / kLanes != later / kLanes) return false;
  return trace->clocks[later][earlier] > clock || clock == kClockLimit;
}

static void forget_synchronisation(Trace* trace) {
  for (SyncLocation& location : trace->locations) {
    for (Release& release : location.log) free(release.clocks);
    free(location.log.items);
    free(location.links.items);
    free(location.observers.items);
    free(location.released_clock);
  }
  trace->locations.clear();
  trace->acquired.clear();
  trace->sections.clear();
  for (uint32_t slot = 0; slot < trace->location_slot_count; ++slot) trace->location_slots[slot] = 0;
}

// ---- releases by a thread

// Computes the release of a store at a level: all accesses before the fences that happen before the store; with `now`,
// before the store itself. `clocks` receives the vector clock. Returns false if there is nothing to release.
static bool publication(const Worker* worker, FenceLevel level, bool now, Release* made, uint16_t* clocks) {
  const Trace* trace = worker->trace;
  uint32_t self = worker->current, first = trace->clocks_wide ? 0 : self - self % kLanes;
  uint32_t end = trace->clocks_wide || first + kLanes > worker->threads ? worker->threads : first + kLanes;
  const uint16_t* known = trace->clocks[self];
  const uint16_t* fenced = trace->fence_clock[level];
  const uint32_t* fenced_in = trace->fence_interval[level];
  const bool own = now || fenced_in[self] == trace->interval;
  uint32_t lowest = kNobody, highest = 0;
  for (uint32_t thread = first; thread < end && (now || trace->fenced_interval[level] == trace->interval); ++thread) {
    uint16_t clock = 0;
    if (thread == self) {
      clock = now ? known[self] : own ? fenced[self] : 0;
    } else if (own) {
      clock = known[thread];
    } else if (fenced_in[thread] == trace->interval && known[thread] >= fenced[thread]) {
      clock = fenced[thread];
    }
    clocks[thread - first] = clock;
    if (!clock) continue;
    if (lowest == kNobody) lowest = thread;
    highest = thread;
  }
  if (lowest == kNobody) {
    *made = trace->published[level];
    return made->interval != 0;
  }
  *made = {trace->block,
           trace->moment,
           trace->interval,
           (uint16_t)lowest,
           (uint16_t)(highest - lowest + 1),
           false,
           false,
           clocks + (lowest - first)};
  return true;
}

// Returns whether there can be a release, to skip the work for atomic operations in kernels without fences.
static inline bool may_publish(const Trace* trace, FenceLevel level, bool now) {
  return now || trace->fenced_interval[level] == trace->interval || trace->published[level].interval;
}

static inline uint16_t published_clock(const Release& release, uint32_t thread) {
  uint32_t index = thread - release.first;
  return index < release.count ? release.clocks[index] : 0;
}

// Stores a release with a copy of its clocks, joined with an earlier release by the same block.
static void store_release(Release* kept, const Release& made) {
  if (kept->interval > made.interval) {
    kept->moment = made.moment;
    return;
  }
  const bool same = kept->interval == made.interval;
  uint32_t first = made.first, end = made.first + made.count;
  if (same && kept->first < first) first = kept->first;
  if (same && (uint32_t)kept->first + kept->count > end) end = kept->first + kept->count;
  uint16_t* clocks = (uint16_t*)allocate_zeros((end - first + 1) * sizeof(uint16_t));
  if (!clocks) return;
  for (uint32_t thread = first; thread < end; ++thread) {
    uint16_t before = same ? published_clock(*kept, thread) : 0, now = published_clock(made, thread);
    clocks[thread - first] = before > now ? before : now;
  }
  free(kept->clocks);
  *kept = made;
  kept->first = (uint16_t)first, kept->count = (uint16_t)(end - first), kept->clocks = clocks;
}

static void forget_published(Trace* trace) {
  for (Release& published : trace->published) {
    free(published.clocks);
    published = {};
  }
}

// At a barrier: the fences of all threads since the last barrier now happen before the stores of every thread.
static void publish_at_barrier(Worker* worker, Trace* trace) {
  for (uint32_t level = kClusterLevel; level < kLevels; ++level) {
    if (trace->fenced_interval[level] != trace->interval) continue;
    Release* published = &trace->published[level];
    uint16_t clocks[kMaxThreads];
    for (uint32_t thread = 0; thread < worker->threads; ++thread) {
      bool fenced = trace->fence_interval[level][thread] == trace->interval;
      clocks[thread] = fenced ? trace->fence_clock[level][thread] : 0;
    }
    // A fence also covers the accesses of other threads that happen before it: those of its warp, or of the whole block
    // once clocks are wide.
    for (uint32_t thread = 0; thread < worker->threads && !trace->clocks_wide; ++thread) {
      if (trace->fence_interval[level][thread] != trace->interval || !trace->clocks_used[thread / kLanes]) continue;
      uint32_t first = thread - thread % kLanes;
      for (uint32_t other = first; other < first + kLanes && other < worker->threads; ++other) {
        uint16_t known = other == thread ? 0 : trace->clocks[thread][other];
        if (known > clocks[other]) clocks[other] = known;
      }
    }
    uint32_t interval = trace->clocks_wide ? trace->interval + 1 : trace->interval;
    store_release(published,
                  {trace->block, trace->moment, interval, 0, (uint16_t)worker->threads, false, false, clocks});
  }
}

// ---- acquires by a thread

static void add_acquirer(Trace* trace, uint32_t thread) {
  if (!trace->acquired_by[thread].count && !trace->unacquired_by[thread].count) trace->acquirers.add(thread);
}

static void share_with_block(Trace* trace, List<Acquired>* list) {
  for (const Acquired& seen : *list) merge_acquired(&trace->acquired, seen);
  list->clear();
}

// At a barrier, the acquires of each thread become acquires of the whole block.
static void share_all_acquires(Trace* trace) {
  for (uint32_t thread : trace->acquirers) {
    share_with_block(trace, &trace->acquired_by[thread]);
    share_with_block(trace, &trace->unacquired_by[thread]);
  }
  trace->acquirers.clear();
}

static void forget_views(Trace* trace) {
  for (uint32_t thread : trace->acquirers) trace->acquired_by[thread].clear(), trace->unacquired_by[thread].clear();
  trace->acquirers.clear();
  trace->acquired.clear();
}

// At a partial barrier, the acquires of a thread become acquires of the block: which threads took part is not tracked.
static inline void share_own_acquires(Trace* trace, uint32_t thread) {
  if (!trace->acquired_by[thread].count) return;
  share_with_block(trace, &trace->acquired_by[thread]);
  if (trace->unacquired_by[thread].count) return;
  for (uint32_t index = 0; index < trace->acquirers.count; ++index) {
    if (trace->acquirers[index] == thread) return trace->acquirers.remove(index);
  }
}

// ---- partial barriers: an arriving thread joins its vector clock into the barrier's, and a waiting thread joins that
// into its own

static void release_clock(Worker* worker, VectorClock** released_clock) {
  Trace* trace = worker->trace;
  if (!trace) return;
  if (!*released_clock) *released_clock = (VectorClock*)allocate_zeros(sizeof(VectorClock));
  VectorClock* row = *released_clock;
  uint32_t self = worker->current;
  uint16_t* known = trace->clocks[self];
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);  // a barrier has ordered earlier intervals
  row->interval = trace->interval;
  trace->clocks_wide = trace->clocks_used[self / kLanes] = trace->partial_barriers = true;
  share_own_acquires(trace, self);
  if (known[self] < kClockLimit) ++known[self];
  for (uint32_t other = 0; other < worker->threads; ++other) {
    if (known[other] > row->at[other]) row->at[other] = known[other];
  }
}

static void acquire_clock(Worker* worker, const VectorClock* row) {
  Trace* trace = worker->trace;
  if (!trace || !row || row->interval != trace->interval) return;
  uint32_t self = worker->current;
  uint16_t* known = trace->clocks[self];
  trace->clocks_wide = trace->clocks_used[self / kLanes] = true;
  for (uint32_t other = 0; other < worker->threads; ++other) {
    if (other != self && row->at[other] > known[other]) known[other] = row->at[other];
  }
}

static void acquire_pending_clock(Worker* worker, uint32_t thread) {
  Trace* trace = worker->trace;
  VectorClock* row = trace->pending_clocks[thread];
  if (!row || row->interval != trace->interval) return;
  uint32_t self = worker->current;
  worker->current = thread;
  acquire_clock(worker, row);
  worker->current = self;
  row->interval = 0;
}

// ---- locks

constexpr uint32_t kMostSections = 1024;

static bool holds_lock(const Trace* trace, uint32_t self) { return trace->locks[self].interval == trace->interval; }

static void note_lock_fence(Trace* trace, uint32_t self, uint32_t level) {
  Lock* lock = &trace->locks[self];
  if (lock->fences < level + 1) lock->fences = level + 1;
}

// Returns whether the thread has taken a lock without an acquire fence of a level since.
static bool holds_unfenced(const Trace* trace, uint32_t self, FenceLevel level) {
  return holds_lock(trace, self) && trace->locks[self].fences <= level;
}

static bool note_unfenced_store(Trace* trace, uint32_t self, FenceLevel level) {
  if (!trace->locks_used || !holds_unfenced(trace, self, level)) return false;
  return trace->locks[self].writes_unfenced[level != kBlockLevel] = true;
}

static void take_lock(Trace* trace, uint32_t self, uintptr_t address, uint64_t free, uint32_t word) {
  trace->locks_used = true;
  trace->locks[self] = {address, free, trace->interval, 0, {false, false}};
  if (!(word & OPB_ACQUIRES)) return;
  note_lock_fence(trace, self,
                  word & OPB_BLOCK_SCOPE ? kBlockLevel : word & OPB_CLUSTER_SCOPE ? kClusterLevel : kDeviceLevel);
}

static void release_lock(Trace* trace, uint32_t self, uintptr_t address) {
  Lock* lock = &trace->locks[self];
  if (!holds_lock(trace, self) || lock->address != address) return;
  List<UnfencedSection>& sections = trace->whole->sections;
  if ((lock->writes_unfenced[0] || lock->writes_unfenced[1]) && sections.count < kMostSections) {
    sections.add({address, lock->free, trace->block, trace->interval, (uint16_t)self});
  }
  *lock = {};
}

// Returns the location of the lock that this thread holds, and that a thread of another block, or another thread of
// this block, has held without an acquire fence; kNobody if there is none.
static uint32_t lock_without_acquire_fence(const Trace* trace, uint32_t self, uint32_t block, uint32_t thread) {
  if (!trace->locks_used || !holds_lock(trace, self)) return kNobody;
  const Lock& own = trace->locks[self];
  for (const UnfencedSection& section : trace->whole->sections) {
    if (section.address != own.address || section.free != own.free || section.block != block) continue;
    if (block == trace->block && (section.interval != trace->interval || section.thread != thread)) continue;
    return location_at(trace->whole, own.address, false);
  }
  return kNobody;
}

static void note_fence(Worker* worker, Trace* trace, uint32_t word) {
  uint32_t self = worker->current;
  uint32_t level = word & OPB_BLOCK_SCOPE ? kBlockLevel : word & OPB_CLUSTER_SCOPE ? kClusterLevel : kDeviceLevel;
  if (word & OPB_ACQUIRES) {
    ++trace->acquire_fences[self];
    acquire_pending_clock(worker, self);
    note_lock_fence(trace, self, level);
    for (const Acquired& seen : trace->unacquired_by[self]) {
      if (level == kBlockLevel) break;
      merge_acquired(&trace->acquired_by[self],
                     {seen.location, seen.length, seen.within_cluster || level == kClusterLevel});
    }
    if (level == kDeviceLevel) trace->unacquired_by[self].clear();
  }
  if (!(word & OPB_RELEASES)) return;
  trace->ends_in_block_fence[self] = level == kBlockLevel;
  uint16_t* known = trace->clocks[self];
  trace->clocks_used[self / kLanes] = true;
  if (known[self] < kClockLimit) ++known[self];
  for (uint32_t at = 0; at <= level; ++at) {
    trace->fence_clock[at][self] = known[self];
    trace->fence_interval[at][self] = trace->fenced_interval[at] = trace->interval;
  }
  if (level != kBlockLevel) begin_moment(trace);
}

// Returns whether the last release of the thread is a fence of cluster or wider scope. A relaxed arrival after such a
// fence releases the accesses before the fence.
static bool has_just_fenced(const Worker* worker) {
  const Trace* trace = worker->trace;
  const uint32_t self = worker->current;
  return trace && trace->fence_interval[kClusterLevel][self] == trace->interval &&
         trace->fence_clock[kClusterLevel][self] == own_clock(trace, self);
}

// ---- synchronising stores, loads and atomic operations

static bool same_scope(const Release& left, const Release& right) {
  return left.within_cluster == right.within_cluster && left.within_block == right.within_block;
}

static void release_to_blocks(Worker* worker, Trace* trace, uint32_t index, const Release& made) {
  SyncLocation* location = &trace->whole->locations[index];
  List<Acquired>* lists[] = {&trace->acquired, &trace->acquired_by[worker->current]};
  for (List<Acquired>* list : lists) {
    for (const Acquired& seen : *list) {
      if (seen.location != index && !made.within_block) merge_acquired(&location->links, seen);
    }
  }
  List<Release>& log = location->log;
  if (worker->team->size == 1) {  // blocks run one after another: one entry for each, and for each scope
    for (uint32_t at = log.count; at-- > 0 && log[at].block == made.block;) {
      if (!same_scope(log[at], made)) continue;
      store_release(&log[at], made);
      return;
    }
  } else {
    // A spin loop of atomic operations makes the same release again and again.
    for (uint32_t back = 1; back <= 64 && back <= log.count; ++back) {
      const Release& known = log[log.count - back];
      if (known.block == made.block && known.moment == made.moment && known.interval == made.interval &&
          same_scope(known, made) && known.first == made.first && known.count == made.count &&
          memcmp(known.clocks, made.clocks, made.count * sizeof(uint16_t)) == 0) {
        return;
      }
    }
  }
  Release fresh = {};
  store_release(&fresh, made);
  if (!log.capacity) {  // most locations have one release
    log.items = (Release*)allocate_zeros(2 * sizeof(Release));
    log.capacity = 2;
  }
  log.add(fresh);
}

static void acquire_from_blocks(Worker* worker, Trace* trace, uint32_t index, uint32_t word) {
  const SyncLocation* location = &trace->whole->locations[index];
  if (!location->log.count && !location->links.count) return;
  uint32_t self = worker->current;
  bool narrow = word & OPB_CLUSTER_SCOPE;
  add_acquirer(trace, self);
  List<Acquired>* list = word & OPB_ACQUIRES ? &trace->acquired_by[self] : &trace->unacquired_by[self];
  if (location->log.count) merge_acquired(list, {index, location->log.count, narrow});
  for (uint32_t link = 0; link < location->links.count; ++link) {
    Acquired seen = location->links.items[link];
    seen.within_cluster |= narrow;
    merge_acquired(list, seen);
  }
}

// Synchronises with other blocks through a location in any memory.
static void synchronise_blocks(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool reads,
                               bool writes) {
  if (word & OPB_BLOCK_SCOPE) return;
  const bool now = word & OPB_RELEASES, narrow = word & OPB_CLUSTER_SCOPE;
  const bool clusters = !worker->launch->cooperative && worker->team->size > 1;
  uint16_t clocks[kMaxThreads];
  Release wide, near, own;
  bool releases_wide = writes && !narrow && may_publish(trace, kDeviceLevel, now) &&
                       publication(worker, kDeviceLevel, now, &wide, clocks);
  const bool releases_own =
      writes && trace->ends_in_block_fence[worker->current] && publication(worker, kBlockLevel, false, &own, clocks);
  uint32_t index = location_at(trace->whole, address, releases_wide || releases_own || (writes && clusters));
  if (index == kNobody) return;
  if (reads) acquire_from_blocks(worker, trace, index, word);
  if (releases_wide) {
    // The release includes the releases that this operation has just acquired.
    publication(worker, kDeviceLevel, now, &wide, clocks);
    release_to_blocks(worker, trace, index, wide);
  }
  if (writes && clusters && may_publish(trace, kClusterLevel, now) &&
      publication(worker, kClusterLevel, now, &near, clocks)) {
    near.within_cluster = true;
    release_to_blocks(worker, trace, index, near);
  }
  if (releases_own && publication(worker, kBlockLevel, false, &own, clocks)) {
    own.within_block = trace->whole->releases_within_block = true;
    release_to_blocks(worker, trace, index, own);
  }
}

// Records that a thread has read what the last releasing store wrote.
static void observe_store(Trace* trace, SyncLocation* location, uint32_t self, uint32_t word) {
  if (location->store.interval != trace->interval || location->store.thread == self) return;
  for (const Observer& known : location->observers) {
    if (known.thread == self) return;
  }
  const uint32_t fences = trace->acquire_fences[self];
  if (word & OPB_ACQUIRES) ++trace->acquire_fences[self];
  location->observers.add({(uint16_t)self, own_clock(trace, self), fences});
}

// Returns whether this thread has read what the last releasing store wrote, and has executed an acquire fence since, or
// another thread that happens before it has read it.
static bool has_observed(const Trace* trace, const SyncLocation& location, uint32_t self) {
  if (location.store.interval != trace->interval) return false;
  for (uint32_t index = 0; index < location.observers.count; ++index) {
    const Observer& observer = location.observers.items[index];
    if (observer.thread == self ? trace->acquire_fences[self] > observer.fences
                                : ordered(trace, observer.thread, observer.clock, self)) {
      return true;
    }
  }
  return false;
}

// Synchronises with other threads of the same block.
static void synchronise_threads(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool reads,
                                bool writes) {
  const bool now = word & OPB_RELEASES;
  uint32_t self = worker->current;
  uint16_t clocks[kMaxThreads];
  Release made;
  const bool published = writes && may_publish(trace, kBlockLevel, now) &&
                         publication(worker, kBlockLevel, now, &made, clocks) && made.interval == trace->interval;
  uint32_t index = location_at(trace, address, published);
  if (index == kNobody) return;
  SyncLocation* location = &trace->locations[index];
  VectorClock*& row = location->released_clock;
  if (reads) observe_store(trace, location, self, word);
  if (reads && row && row->interval == trace->interval) {
    VectorClock*& pending = trace->pending_clocks[self];
    if (word & OPB_ACQUIRES) {
      acquire_clock(worker, row);
    } else {
      if (!pending) pending = (VectorClock*)allocate_zeros(sizeof(VectorClock));
      if (pending->interval != trace->interval) memset(pending->at, 0, sizeof pending->at);
      pending->interval = trace->interval;
      for (uint32_t other = 0; other < worker->threads; ++other) {
        if (row->at[other] > pending->at[other]) pending->at[other] = row->at[other];
      }
    }
  }
  if (!published) return;
  if (reads) publication(worker, kBlockLevel, now, &made, clocks);
  if (!row) row = (VectorClock*)allocate_zeros(sizeof(VectorClock));
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);
  row->interval = trace->interval;
  trace->clocks_wide = trace->clocks_used[self / kLanes] = trace->partial_barriers = true;
  for (uint32_t other = made.first; other < (uint32_t)made.first + made.count; ++other) {
    uint16_t clock = published_clock(made, other);
    if (clock > row->at[other]) row->at[other] = clock;
  }
  const uint16_t own = published_clock(made, self), clock = own_clock(trace, self);
  if (!own) return;
  location->replaced = has_observed(trace, *location, self) ? location->store : ReleasingStore{};
  location->store = {trace->interval, (uint16_t)self, clock, (uint16_t)(clock - own + 1)};
  location->observers.clear();
}

// Performs the releases and acquires of a volatile or atomic access.
static void synchronise(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool reads, bool writes,
                        bool other_blocks) {
  uint32_t self = worker->current;
  if (reads && !(word & OPB_COUNTS)) trace->guards[self] = {address, trace->block};
  if (writes && word & OPB_RELEASES) {
    trace->clocks_used[self / kLanes] = true;
    if (own_clock(trace, self) < kClockLimit) ++trace->clocks[self][self];
    if (!(word & OPB_BLOCK_SCOPE)) begin_moment(trace);
  }
  if (writes && trace->locks_used && !(word & OPB_COMPARES)) release_lock(trace, self, address);
  if (other_blocks) synchronise_blocks(worker, trace, address, word, reads, writes);
  synchronise_threads(worker, trace, address, word, reads, writes);
  trace->ends_in_block_fence[self] = false;
}

// ---- atomic operations that a volatile store overwrites

static AtomicUpdate* update_at(Trace* trace, uintptr_t address) {
  return &trace->whole->updates[(uint32_t)(address * 0x9E3779B97F4A7C15u >> 32) % kAtomicUpdates];
}

static void note_update(Trace* trace, uintptr_t address, uint32_t bytes, uint32_t access) {
  AtomicUpdate* update = update_at(trace, address);
  if (access != OPB_ACCESS_ATOMIC) {
    if (trace->word & OPB_STRONG && update->address == address) update->address = 0;
    return;
  }
  *update = {address, 0, bytes};
  memcpy(&update->before, (const void*)address, bytes < 8 ? bytes : 8);
}

// Returns whether the last write of a location is an atomic operation that has changed the value. A poll by
// atomicAdd(&flag, 0) changes nothing.
static bool is_changed_by_update(Trace* trace, uintptr_t address) {
  const AtomicUpdate* update = update_at(trace, address);
  return update->address == address && memcmp(&update->before, (const void*)address, update->bytes) != 0;
}

// Returns whether this block is known to have read a location by a volatile or atomic access.
static bool has_polled(const Worker* worker, uintptr_t address) {
  const Trace* trace = worker->trace;
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    for (const Poll& poll : trace->polls[thread]) {
      if (poll.address == address && poll.interval >= trace->block_interval) return true;
    }
  }
  return false;
}

// Returns whether a thread of the current warp, or one that happens before the current thread, is known to have read a
// location by a volatile or atomic access since the last barrier; `except` does not count.
static bool has_seen(const Worker* worker, uintptr_t address, uint32_t except) {
  const Trace* trace = worker->trace;
  const uint32_t self = worker->current;
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    if (thread == except) continue;
    for (const Poll& poll : trace->polls[thread]) {
      if (poll.address != address || poll.interval != trace->interval) continue;
      if (thread / kLanes == self / kLanes || ordered(trace, thread, poll.clock, self)) return true;
    }
  }
  return false;
}

// ---- whether an access of another block happens before the current one

// An earlier access. Thread, interval and clock are known for a write (`exact`), only the moment for a read.
struct EarlierAccess {
  uintptr_t address;
  uint32_t moment;
  bool exact;
  uint32_t thread, interval;
  uint16_t clock;
};

static bool covers(const Release& release, const EarlierAccess& earlier) {
  if (!earlier.exact) return release.moment > earlier.moment;
  if (release.interval != earlier.interval) return release.interval > earlier.interval;
  return published_clock(release, earlier.thread) > earlier.clock || earlier.clock == kClockLimit;
}

// Returns whether a list has a release by a block that covers an access, other than by the location `except`. With
// `within_block`, the release must be one that has no effect, because its scope is the block.
static bool has_acquired(const Worker* worker, const List<Acquired>& list, uint32_t block, const EarlierAccess& earlier,
                         uint32_t except = kNobody, bool within_block = false) {
  const Trace* trace = worker->trace;
  const uint32_t size = worker->team->size, first_block = trace->first_block, team = (block - first_block) / size;
  for (uint32_t index = 0; index < list.count; ++index) {
    const Acquired& seen = list.items[index];
    if (seen.location == except) continue;
    const List<Release>& log = trace->whole->locations.items[seen.location].log;
    uint32_t low = 0, high = seen.length;
    while (low < high) {  // teams run one after another, so the log is sorted by team
      uint32_t middle = (low + high) / 2;
      if ((log.items[middle].block - first_block) / size < team) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (; low < seen.length && (log.items[low].block - first_block) / size == team; ++low) {
      const Release& release = log.items[low];
      if (release.within_block != within_block) continue;
      // A releasing store happens before what acquires it.
      const bool itself = trace->whole->locations.items[seen.location].address == earlier.address;
      if (release.block != block || !(itself || covers(release, earlier))) continue;
      if (!(release.within_cluster || seen.within_cluster) || same_cluster(worker, block)) return true;
    }
  }
  return false;
}

static __attribute__((noinline)) bool ordered_between_blocks(const Worker* worker, uint32_t block,
                                                             const EarlierAccess& earlier, uint32_t except = kNobody) {
  const Trace* trace = worker->trace;
  const Team* team = worker->team;
  if (team->size > 1) {
    uint32_t number = block - trace->first_block, own = trace->block - trace->first_block;
    if (number / team->size == own / team->size && earlier.moment < team->settled[number % team->size]) return true;
  }
  return has_acquired(worker, trace->acquired, block, earlier, except) ||
         has_acquired(worker, trace->acquired_by[worker->current], block, earlier, except);
}
