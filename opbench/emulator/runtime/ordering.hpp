// What orders accesses of different blocks, and those of one block's threads between barriers: a fence before a store
// or atomic operation publishes, and who sees that and fences knows what was published. A release or an acquire is a
// fence of its own. __syncthreads() stands for the fence of who has seen: NVIDIA's sample threadFenceReduction relies on it.
#pragma once
#include "access_sets.hpp"

constexpr uint16_t kClockLimit = 0xffff;

static inline uint16_t own_clock(const Trace* trace, uint32_t thread) {
  return trace->clocks[thread][thread];
}

static inline uint32_t block_of(const Trace* trace, uint32_t moment) {
  const Trace* whole = trace->whole;
  return whole->blocks_of_moments.items[moment - whole->first_moment];
}

static void begin_moment(Trace* trace) {
  Trace* whole = trace->whole;
  trace->moment = whole->next_moment++;
  whole->blocks_of_moments.add(trace->block);
}

// A cooperative launch runs as one team, but its blocks are no cluster.
static inline bool same_cluster(const Worker* worker, uint32_t block) {
  const Trace* trace = worker->trace;
  uint32_t size = worker->launch->cooperative ? 1 : cluster_size(worker->launch);
  return (block - trace->first_block) / size == (trace->block - trace->first_block) / size;
}

// ---- locations

// Of each location the longest part of its log: lists stay as short as there are locations, however often they grow.
static void keep_longest(List<Acquired>* list, Acquired seen) {
  for (Acquired& known : *list) {
    if (known.location != seen.location || known.within_cluster != seen.within_cluster) continue;
    if (known.length < seen.length) known.length = seen.length;
    return;
  }
  list->add(seen);
}

// Where the number of an address stands, or would: linear probing, at most half full.
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
  trace->locations.add({address, {}, {}, nullptr});
  return (*location_slot(trace, address) = trace->locations.count) - 1;
}

static void forget_synchronisation(Trace* trace) {
  for (SyncLocation& location : trace->locations) {
    for (Release& release : location.log) free(release.clocks);
    free(location.log.items);
    free(location.links.items);
    free(location.told);
  }
  trace->locations.clear();
  trace->acquired.clear();
  for (uint32_t slot = 0; slot < trace->location_slot_count; ++slot) trace->location_slots[slot] = 0;
}

// ---- what a thread may publish

// What fences of a level have made known as far as the thread knows of them; `now` when the thread itself releases. The
// clocks of other threads go into the given row. False when nothing has been made known.
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
  *made = {trace->block, trace->moment, trace->interval, (uint16_t)lowest, (uint16_t)(highest - lowest + 1), false,
           clocks + (lowest - first)};
  return true;
}

// Whether there can be a publication: most atomic operations stand in kernels without a fence.
static inline bool may_publish(const Trace* trace, FenceLevel level, bool now) {
  return now || trace->fenced_interval[level] == trace->interval || trace->published[level].interval;
}

static inline uint16_t published_clock(const Release& release, uint32_t thread) {
  uint32_t index = thread - release.first;
  return index < release.count ? release.clocks[index] : 0;
}

// Keeps a release with a copy of its clocks, joined with an earlier one of the same block.
static void keep_release(Release* kept, const Release& made) {
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

// At a barrier: what threads have fenced since the last one, every thread may publish from now on.
static void publish_at_barrier(Worker* worker, Trace* trace) {
  for (uint32_t level = kClusterLevel; level < kLevels; ++level) {
    if (trace->fenced_interval[level] != trace->interval) continue;
    Release* published = &trace->published[level];
    uint16_t clocks[kMaxThreads];
    for (uint32_t thread = 0; thread < worker->threads; ++thread) {
      bool fenced = trace->fence_interval[level][thread] == trace->interval;
      clocks[thread] = fenced ? trace->fence_clock[level][thread] : 0;
    }
    // Who fences knows of others in its warp; where threads have met at part of the block, of any.
    for (uint32_t thread = 0; thread < worker->threads && !trace->clocks_wide; ++thread) {
      if (trace->fence_interval[level][thread] != trace->interval || !trace->clocks_used[thread / kLanes]) continue;
      uint32_t first = thread - thread % kLanes;
      for (uint32_t other = first; other < first + kLanes && other < worker->threads; ++other) {
        uint16_t known = other == thread ? 0 : trace->clocks[thread][other];
        if (known > clocks[other]) clocks[other] = known;
      }
    }
    uint32_t interval = trace->clocks_wide ? trace->interval + 1 : trace->interval;
    keep_release(published, {trace->block, trace->moment, interval, 0, (uint16_t)worker->threads, false, clocks});
  }
}

// ---- what a thread has seen

static void add_viewer(Trace* trace, uint32_t thread) {
  if (!trace->own[thread].count && !trace->seen_by[thread].count) trace->viewers.add(thread);
}

static void share_with_block(Trace* trace, List<Acquired>* list) {
  for (const Acquired& seen : *list) keep_longest(&trace->acquired, seen);
  list->clear();
}

// Where all threads of the block have met, all know what one has seen.
static void share_all(Trace* trace) {
  for (uint32_t thread : trace->viewers) {
    share_with_block(trace, &trace->own[thread]);
    share_with_block(trace, &trace->seen_by[thread]);
  }
  trace->viewers.clear();
}

static void forget_views(Trace* trace) {
  for (uint32_t thread : trace->viewers) trace->own[thread].clear(), trace->seen_by[thread].clear();
  trace->viewers.clear();
  trace->acquired.clear();
}

// Where a thread meets some others, which others is not followed.
static inline void share_own(Trace* trace, uint32_t thread) {
  if (!trace->own[thread].count) return;
  share_with_block(trace, &trace->own[thread]);
  if (trace->seen_by[thread].count) return;
  for (uint32_t index = 0; index < trace->viewers.count; ++index) {
    if (trace->viewers[index] == thread) return trace->viewers.remove(index);
  }
}

// ---- where part of a block meets: what a thread knows goes into a row, and from there to whoever waits

static void trace_tell(Worker* worker, ClockRow** told) {
  Trace* trace = worker->trace;
  if (!trace) return;
  if (!*told) *told = (ClockRow*)allocate_zeros(sizeof(ClockRow));
  ClockRow* row = *told;
  uint32_t self = worker->current;
  uint16_t* known = trace->clocks[self];
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);  // what came before a barrier is settled
  row->interval = trace->interval;
  trace->clocks_wide = trace->clocks_used[self / kLanes] = trace->threads_meet_in_parts = true;
  share_own(trace, self);
  if (known[self] < kClockLimit) ++known[self];
  for (uint32_t other = 0; other < worker->threads; ++other) {
    if (known[other] > row->at[other]) row->at[other] = known[other];
  }
}

static void trace_learn(Worker* worker, const ClockRow* row) {
  Trace* trace = worker->trace;
  if (!trace || !row || row->interval != trace->interval) return;
  uint32_t self = worker->current;
  uint16_t* known = trace->clocks[self];
  trace->clocks_wide = trace->clocks_used[self / kLanes] = true;
  for (uint32_t other = 0; other < worker->threads; ++other) {
    if (other != self && row->at[other] > known[other]) known[other] = row->at[other];
  }
}

static void learn_pending(Worker* worker, uint32_t thread) {
  Trace* trace = worker->trace;
  ClockRow* row = trace->pending_rows[thread];
  if (!row || row->interval != trace->interval) return;
  uint32_t self = worker->current;
  worker->current = thread;
  trace_learn(worker, row);
  worker->current = self;
  row->interval = 0;
}

static void note_fence(Worker* worker, Trace* trace, uint32_t word) {
  uint32_t self = worker->current;
  uint32_t level = word & OPB_BLOCK_SCOPE ? kBlockLevel : word & OPB_CLUSTER_SCOPE ? kClusterLevel : kDeviceLevel;
  if (word & OPB_ACQUIRES) {
    learn_pending(worker, self);
    for (const Acquired& seen : trace->seen_by[self]) {
      if (level == kBlockLevel) break;
      keep_longest(&trace->own[self], {seen.location, seen.length, seen.within_cluster || level == kClusterLevel});
    }
    if (level == kDeviceLevel) trace->seen_by[self].clear();
  }
  if (!(word & OPB_RELEASES)) return;
  uint16_t* known = trace->clocks[self];
  trace->clocks_used[self / kLanes] = true;
  if (known[self] < kClockLimit) ++known[self];
  for (uint32_t at = 0; at <= level; ++at) {
    trace->fence_clock[at][self] = known[self];
    trace->fence_interval[at][self] = trace->fenced_interval[at] = trace->interval;
  }
  if (level != kBlockLevel) begin_moment(trace);
}

// Whether the last thing that a thread has released is a fence of the cluster's or a wider scope: a relaxed arrival behind
// it releases what came before the fence.
static bool has_just_fenced(const Worker* worker) {
  const Trace* trace = worker->trace;
  const uint32_t self = worker->current;
  return trace && trace->fence_interval[kClusterLevel][self] == trace->interval &&
         trace->fence_clock[kClusterLevel][self] == own_clock(trace, self);
}

// ---- stores and atomic operations that publish, and loads and atomic operations that see

static void tell_blocks(Worker* worker, Trace* trace, uint32_t index, const Release& made) {
  SyncLocation* location = &trace->whole->locations[index];
  List<Acquired>* lists[] = {&trace->acquired, &trace->own[worker->current]};
  for (List<Acquired>* list : lists) {
    for (const Acquired& seen : *list) {
      if (seen.location != index) keep_longest(&location->links, seen);
    }
  }
  List<Release>& log = location->log;
  if (worker->team->size == 1) {  // blocks run one after another: one entry for each
    Release* last = log.count ? &log[log.count - 1] : nullptr;
    if (last && last->block == made.block && last->within_cluster == made.within_cluster) {
      keep_release(last, made);
      return;
    }
  } else {
    // Who waits in a loop publishes the same again and again.
    for (uint32_t back = 1; back <= 64 && back <= log.count; ++back) {
      const Release& known = log[log.count - back];
      if (known.block == made.block && known.moment == made.moment && known.interval == made.interval &&
          known.within_cluster == made.within_cluster && known.first == made.first && known.count == made.count &&
          memcmp(known.clocks, made.clocks, made.count * sizeof(uint16_t)) == 0) {
        return;
      }
    }
  }
  Release fresh = {};
  keep_release(&fresh, made);
  if (!log.capacity) {  // most locations are told of once
    log.items = (Release*)allocate_zeros(2 * sizeof(Release));
    log.capacity = 2;
  }
  log.add(fresh);
}

static void see_blocks(Worker* worker, Trace* trace, uint32_t index, uint32_t word) {
  const SyncLocation* location = &trace->whole->locations[index];
  if (!location->log.count && !location->links.count) return;
  uint32_t self = worker->current;
  bool narrow = word & OPB_CLUSTER_SCOPE;
  add_viewer(trace, self);
  List<Acquired>* list = word & OPB_ACQUIRES ? &trace->own[self] : &trace->seen_by[self];
  if (location->log.count) keep_longest(list, {index, location->log.count, narrow});
  for (uint32_t link = 0; link < location->links.count; ++link) {
    Acquired seen = location->links.items[link];
    seen.within_cluster |= narrow;
    keep_longest(list, seen);
  }
}

// Between blocks, by a location of any memory.
static void synchronise_blocks(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool sees, bool tells) {
  if (word & OPB_BLOCK_SCOPE) return;
  const bool now = word & OPB_RELEASES, narrow = word & OPB_CLUSTER_SCOPE;
  const bool clusters = !worker->launch->cooperative && worker->team->size > 1;
  uint16_t clocks[kMaxThreads];
  Release wide, near;
  bool told_wide = tells && !narrow && may_publish(trace, kDeviceLevel, now) && publication(worker, kDeviceLevel, now, &wide, clocks);
  uint32_t index = location_at(trace->whole, address, told_wide || (tells && clusters));
  if (index == kNobody) return;
  if (sees) see_blocks(worker, trace, index, word);
  if (told_wide) {
    // What has just been seen may be published with it.
    publication(worker, kDeviceLevel, now, &wide, clocks);
    tell_blocks(worker, trace, index, wide);
  }
  if (tells && clusters && may_publish(trace, kClusterLevel, now) && publication(worker, kClusterLevel, now, &near, clocks)) {
    near.within_cluster = true;
    tell_blocks(worker, trace, index, near);
  }
}

// The same among the threads of one block.
static void synchronise_threads(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool sees, bool tells) {
  const bool now = word & OPB_RELEASES;
  uint32_t self = worker->current;
  uint16_t clocks[kMaxThreads];
  Release made;
  const bool published = tells && may_publish(trace, kBlockLevel, now) && publication(worker, kBlockLevel, now, &made, clocks) && made.interval == trace->interval;
  uint32_t index = location_at(trace, address, published);
  if (index == kNobody) return;
  ClockRow*& row = trace->locations[index].told;
  if (sees && row && row->interval == trace->interval) {
    ClockRow*& pending = trace->pending_rows[self];
    if (word & OPB_ACQUIRES) {
      trace_learn(worker, row);
    } else {
      if (!pending) pending = (ClockRow*)allocate_zeros(sizeof(ClockRow));
          if (pending->interval != trace->interval) memset(pending->at, 0, sizeof pending->at);
      pending->interval = trace->interval;
      for (uint32_t other = 0; other < worker->threads; ++other) {
        if (row->at[other] > pending->at[other]) pending->at[other] = row->at[other];
      }
    }
  }
  if (!published) return;
  if (sees) publication(worker, kBlockLevel, now, &made, clocks);
  if (!row) row = (ClockRow*)allocate_zeros(sizeof(ClockRow));
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);
  row->interval = trace->interval;
  trace->clocks_wide = trace->clocks_used[self / kLanes] = trace->threads_meet_in_parts = true;
  for (uint32_t other = made.first; other < (uint32_t)made.first + made.count; ++other) {
    uint16_t clock = published_clock(made, other);
    if (clock > row->at[other]) row->at[other] = clock;
  }
  // The store itself is published as well.
  uint16_t own = published_clock(made, self);
  if (own) trace->write_clock_back = (uint16_t)(own_clock(trace, self) - own + 1);
}

// A volatile or atomic access: what it tells other threads and blocks, and what it learns of them.
static void synchronise(Worker* worker, Trace* trace, uintptr_t address, uint32_t word, bool sees, bool tells,
                        bool other_blocks) {
  uint32_t self = worker->current;
  if (sees && !(word & OPB_COUNTS)) trace->guards[self] = {address, trace->block};
  if (tells && word & OPB_RELEASES) {
    trace->clocks_used[self / kLanes] = true;
    if (own_clock(trace, self) < kClockLimit) ++trace->clocks[self][self];
    if (!(word & OPB_BLOCK_SCOPE)) begin_moment(trace);
  }
  if (other_blocks) synchronise_blocks(worker, trace, address, word, sees, tells);
  synchronise_threads(worker, trace, address, word, sees, tells);
}

// ---- whether an access of another block is ordered before this thread's

// An earlier access: of a write it is known which thread did it when, of others the moment alone.
struct Earlier {
  uintptr_t address;
  uint32_t moment;
  bool exact;
  uint32_t thread, interval;
  uint16_t clock;
};

static bool makes_known(const Release& release, const Earlier& earlier) {
  if (!earlier.exact) return release.moment > earlier.moment;
  if (release.interval != earlier.interval) return release.interval > earlier.interval;
  return published_clock(release, earlier.thread) > earlier.clock || earlier.clock == kClockLimit;
}

static bool knows_of(const Worker* worker, const List<Acquired>& list, uint32_t block, const Earlier& earlier) {
  const Trace* trace = worker->trace;
  const uint32_t size = worker->team->size, first_block = trace->first_block, team = (block - first_block) / size;
  for (uint32_t index = 0; index < list.count; ++index) {
    const Acquired& seen = list.items[index];
    const List<Release>& log = trace->whole->locations.items[seen.location].log;
    uint32_t low = 0, high = seen.length;
    while (low < high) {  // teams run one after another, so the log is sorted by them
      uint32_t middle = (low + high) / 2;
      if ((log.items[middle].block - first_block) / size < team) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (; low < seen.length && (log.items[low].block - first_block) / size == team; ++low) {
      const Release& release = log.items[low];
      // A store that publishes is known to whoever knows what it published.
      const bool itself = trace->whole->locations.items[seen.location].address == earlier.address;
      if (release.block != block || !(itself || makes_known(release, earlier))) continue;
      if (!(release.within_cluster || seen.within_cluster) || same_cluster(worker, block)) return true;
    }
  }
  return false;
}

static __attribute__((noinline)) bool ordered_between_blocks(const Worker* worker, uint32_t block,
                                                             const Earlier& earlier) {
  const Trace* trace = worker->trace;
  const Team* team = worker->team;
  if (team->size > 1) {
    uint32_t number = block - trace->first_block, own = trace->block - trace->first_block;
    if (number / team->size == own / team->size && earlier.moment < team->settled[number % team->size]) return true;
  }
  return knows_of(worker, trace->acquired, block, earlier) ||
         knows_of(worker, trace->own[worker->current], block, earlier);
}
