// Provides the common parts of asynchronous work: waiting threads, pseudo-random choices, shared addresses and
// deadlocks.
//
// A waiting CUDA thread is parked: it does not block its operating-system thread. When no thread of a block can run,
// the oldest copy lands, or another block of the cluster runs, or the launch is a deadlock. Without a seed, work
// completes as late as the program allows and threads run in turn; with a seed, both are pseudo-random. bulk.hpp,
// mbarrier.hpp, clusters.hpp and products.hpp build on this header.
#pragma once
#include "copies.hpp"

enum WaitKind : uint32_t { kNoWait, kWaitMbarrier, kWaitNamed, kWaitCluster, kWaitProduct };

struct Wait {
  WaitKind kind;
  uint32_t what, parity, site;
};

struct Mbarrier {  // the state of an mbarrier; its 64 bits in shared memory contain only a mark
  uint32_t offset, count, pending;
  uint64_t phase;
  int64_t bytes;  // expected bytes that have not landed; negative if bytes landed before expect_tx
  uint32_t made, arrived, arrived_thread, arrived_rank;
  VectorClock* released_clock;
};

struct NamedBarrier {
  uint32_t arrived, generation, threads, site;
  VectorClock* released_clock;
};

struct Bulk {  // a bulk copy in flight
  opb_tensor_map map;
  opb_place place;
  opb_bulk_kind kind;
  opb_type type;
  uint64_t from;  // the source address of a copy of `bytes` bytes without a tensor map
  uint32_t bytes, shared, barrier, group, thread, site, async_read;
  uint16_t clock;       // the clock of the thread that started the copy
  bool own, inlined;    // whether a thread of this block started it; whether `data` is the content to write
  unsigned char* seen;  // the content that a store would have read at its start
  unsigned char data[16];
};

struct Warpgroup;

struct Events {
  bool used;
  List<Mbarrier> barriers;
  List<Bulk> loads, stores;
  List<uint32_t> tried;  // sites at which a try_wait has returned false
  Wait waits[kMaxThreads];
  uint32_t store_groups[kMaxThreads];
  NamedBarrier named[16];
  Warpgroup* groups[kMaxThreads / 128];
  uint32_t registers[kMaxThreads / 128];
  uint32_t cluster_waits[kMaxThreads];
  VectorClock* cluster_clock;
  float left[64 * 32], right[256 * 32];  // the operands of a wgmma
};

static const char kMark[9] = "mbarrier";

static inline uint64_t next_random(Worker* worker) {
  worker->random_state ^= worker->random_state << 13, worker->random_state ^= worker->random_state >> 7,
      worker->random_state ^= worker->random_state << 17;
  return worker->random_state >> 11;
}
static inline bool at_random(Worker* worker, uint32_t one_in) {
  return worker->launch->seed && next_random(worker) % one_in == 0;
}

// ---- turns of the blocks of a cluster

static void switch_block(Team* team, uint32_t from, uint32_t to) {
  pthread_mutex_lock(&team->mutex);
  team->holder = to;
  pthread_cond_signal(&team->turn[to]);
  while (team->holder != from) pthread_cond_wait(&team->turn[from], &team->mutex);
  pthread_mutex_unlock(&team->mutex);
}

static bool can_run(const Team* team, uint32_t rank) {
  const Worker* member = team->members[rank];
  if (team->finished[rank]) return false;
  if (!team->started[rank] || member->events->loads.count) return true;
  for (uint32_t warp = 0; warp < member->warps; ++warp) {
    if (runnable(member, warp)) return true;
  }
  return false;
}

// Lets another block of the cluster run; returns false if none can.
static bool run_other_block(Worker* worker) {
  Team* team = worker->team;
  for (uint32_t step = 1; step < team->size; ++step) {
    uint32_t other = (worker->rank + step) % team->size;
    if (!can_run(team, other)) continue;
    switch_block(team, worker->rank, other);
    if (team->dead) abandon_launch(worker);
    return true;
  }
  return false;
}

// Runs the first runnable thread of the block, from thread `from` on, other than the current one.
static void resume_other(Worker* worker, uint32_t from) {
  uint32_t self = worker->current;
  for (uint32_t step = 0; step < worker->threads; ++step) {
    uint32_t other = (from + step) % worker->threads;
    if (other == self || !(runnable(worker, other / kLanes) & bit_of(other))) continue;
    return resume(worker, &worker->contexts[self], other);
  }
}

// Called at the start of every asynchronous operation: with a seed, a pseudo-random thread may run first.
static Worker* enter_event() {
  Worker* worker = opb_worker;
  if (!worker->fibers) become_fibers(worker);
  worker->events->used = true;
  if (!at_random(worker, 4)) return worker;
  if (at_random(worker, 16)) run_other_block(worker);
  resume_other(worker, (uint32_t)(next_random(worker) % worker->threads));
  return worker;
}

// Delays an operation on another block: the other blocks run first, as far as they can.
static bool run_others_first(Worker* worker) {
  return (!worker->launch->seed || at_random(worker, 2)) && run_other_block(worker);
}

static void count_progress(Worker* worker) { ++worker->team->progress; }

static inline bool is_parked(const Worker* worker, uint32_t thread) {
  return worker->parked[thread / kLanes] & bit_of(thread);
}
static inline void wake(Worker* worker, uint32_t thread) {
  halt(worker, worker->parked, thread / kLanes, bit_of(thread), false);
}

// Wakes every thread that waits for `what`, so that the thread tests its condition again; returns the last such thread.
static uint32_t wake_all(Worker* worker, WaitKind kind, uint32_t what) {
  uint32_t woken = kNobody;
  for (uint32_t warp = 0; warp < worker->warps; ++warp) {
    for (uint32_t rest = worker->parked[warp]; rest; rest &= rest - 1) {
      uint32_t thread = warp * kLanes + __builtin_ctz(rest);
      const Wait* wait = &worker->events->waits[thread];
      if (wait->kind == kind && wait->what == what) wake(worker, woken = thread);
    }
  }
  return woken;
}

// Suspends the thread; returns when the thread has been woken, for any reason.
static void park(Worker* worker, Wait wait) {
  uint32_t self = worker->current, warp = self / kLanes;
  worker->events->waits[self] = wait;
  halt(worker, worker->parked, warp, bit_of(self), true);
  if (worker->trace) trace_lane_stopped(worker, warp);
  yield_to_next(worker);
  worker->events->waits[self].kind = kNoWait;
}

// ---- shared addresses: an offset with the block's rank in its cluster plus one in the bits above; or a generic
// pointer

struct SharedPlace {
  Worker* worker;  // null if the address is outside of the cluster's shared memory
  uint32_t offset;
};

static SharedPlace shared_place(Worker* worker, uint64_t address) {
  Team* team = worker->team;
  if (address >> 32) {
    for (uint32_t rank = 0; rank < team->size; ++rank) {
      Worker* member = team->members[rank];
      uint64_t offset = address - (uint64_t)(uintptr_t)member->shared_base;
      if (member->shared_base && offset < member->shared_bytes) return {member, (uint32_t)offset};
    }
    return {nullptr, 0};
  }
  uint32_t rank = (uint32_t)(address >> 24);
  if (rank > team->size) return {nullptr, 0};
  return {rank ? team->members[rank - 1] : worker, (uint32_t)(address & 0xffffffu)};
}

// Returns the bytes of shared memory from an offset on; shared memory ends with the dynamic array.
static uint32_t shared_bytes_from(const Worker* worker, uint32_t offset) {
  uint32_t dynamic = (uint32_t)(worker->dynamic_base - worker->shared_base);
  uint32_t canary = dynamic + (uint32_t)(kDynamicSharedBytes + kSharedCanaryBytes);
  uint32_t end =
      offset < dynamic || offset >= canary ? (uint32_t)worker->shared_bytes : dynamic + worker->launch->shared_bytes;
  return offset < end ? end - offset : 0;
}

// Returns the offset for a report: from the start of the dynamic array if the address lies in it.
static int32_t reported_offset(const Worker* worker, uint32_t offset) {
  uint32_t dynamic = (uint32_t)(worker->dynamic_base - worker->shared_base);
  return (int32_t)(offset >= dynamic ? offset - dynamic : offset);
}

// Returns the range of shared memory that a copy or product accesses; reports a range out of bounds and abandons the
// launch.
static SharedPlace checked_range(Worker* worker, uint64_t address, uint32_t bytes, const char* who, uint32_t site) {
  SharedPlace place = shared_place(worker, address);
  if (!place.worker) {
    report_at(worker, kReportBeyondShared, site, "%s at %#llx, which is no shared memory of the block or its cluster",
              who, (unsigned long long)address);
    abandon_launch(worker);
  }
  uint32_t room = shared_bytes_from(place.worker, place.offset);
  if (room < bytes) {
    report_at(worker, kReportBeyondShared, site,
              "%s of %u bytes at byte %d of shared memory, of which %u are left; the launch asks for %u", who, bytes,
              reported_offset(place.worker, place.offset), room, worker->launch->shared_bytes);
    abandon_launch(worker);
  }
  return place;
}

// ---- deadlocks: what each thread waits for, and what is missing

static int describe_wait(const Worker* worker, uint32_t thread, char* text, size_t room) {
  const Wait* wait = &worker->events->waits[thread];
  uint32_t warp = thread / kLanes, bit = bit_of(thread);
  if (worker->parked[warp] & bit && wait->kind == kWaitMbarrier) {
    for (const Mbarrier& it : worker->events->barriers) {
      if (it.offset != wait->what) continue;
      int written = snprintf(
          text, room,
          "at @%x@ for phase %llu (parity %u) of the mbarrier at byte %d of shared memory (made at @%x@), which lacks",
          wait->site, (unsigned long long)it.phase, (unsigned)(it.phase & 1), reported_offset(worker, it.offset),
          it.made);
      if (it.pending) written += snprintf(text + written, room - written, " %u of %u arrivals", it.pending, it.count);
      if (it.bytes) {
        written += snprintf(text + written, room - written, "%s %lld bytes%s", it.pending ? " and" : "",
                            (long long)(it.bytes < 0 ? -it.bytes : it.bytes), it.bytes < 0 ? " of expectation" : "");
      }
      if (!it.arrived) return written + snprintf(text + written, room - written, "; nobody has arrived yet");
      return written + snprintf(text + written, room - written, "; last arrival at @%x@ by thread %u%s", it.arrived,
                                it.arrived_thread, it.arrived_rank == worker->rank ? "" : " of another block");
    }
  }
  if (worker->parked[warp] & bit && wait->kind == kWaitNamed) {
    const NamedBarrier* it = &worker->events->named[wait->what];
    return snprintf(text, room, "at @%x@ for barrier %u, which lacks %u of %u threads", wait->site, wait->what,
                    it->threads - it->arrived, it->threads);
  }
  if (worker->parked[warp] & bit && wait->kind == kWaitCluster) {
    return snprintf(text, room, "at @%x@ for the cluster's barrier", wait->site);
  }
  if (worker->parked[warp] & bit && wait->kind == kWaitProduct) {
    uint32_t first = thread / kGroupThreads * (kGroupThreads / kLanes), exited = 0;
    for (uint32_t other = first; other < first + kGroupThreads / kLanes; ++other) {
      exited += kLanes - __builtin_popcount(worker->live[other]);
    }
    int written =
        snprintf(text, room, "at @%x@ for the other warps of its warpgroup to issue the same wgmma", wait->site);
    if (!exited) return written;
    return written + snprintf(text + written, room - written, ", of which %u threads have exited", exited);
  }
  const char* what = worker->at_barrier[warp] & bit ? "__syncthreads()" : "the other lanes of its warp";
  return snprintf(text, room, "at line %u for %s", worker->waiting_site[thread].line, what);
}

// Returns how likely a wait is the cause: highest for a barrier with some arrivals of which others are missing, and few
// waiters.
static uint32_t likelihood_of_cause(Worker* worker, const Wait* wait) {
  uint32_t waiters = 0, weight = 0;
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    const Wait* other = &worker->events->waits[thread];
    waiters += is_parked(worker, thread) && other->kind == wait->kind && other->what == wait->what;
  }
  for (const Mbarrier& it : worker->events->barriers) {
    if (wait->kind != kWaitMbarrier || it.offset != wait->what) continue;
    weight = it.bytes || it.pending < it.count ? 2 : 1;
  }
  return weight * 2 * kMaxThreads + kMaxThreads - waiters;
}

struct Waiters {  // threads of a block that wait for the same barrier or copy
  uint32_t first, count;
  char text[400];
};

// Groups the threads of one block by wait, at most `room` groups, and finds the wait that is most likely the cause.
static uint32_t gather_waiters(Worker* worker, Waiters* groups, uint32_t room, uint32_t* most, uint32_t* site) {
  uint32_t count = 0;
  for (uint32_t thread = 0; thread < worker->threads && count < room; ++thread) {
    if (!(worker->live[thread / kLanes] & bit_of(thread))) continue;
    Waiters* fresh = &groups[count];
    *fresh = {thread, 0, ""};
    describe_wait(worker, thread, fresh->text, sizeof fresh->text);
    Waiters* group = groups;
    while (strcmp(group->text, fresh->text) != 0) ++group;
    if (group->count++) continue;
    ++count;
    const Wait* wait = &worker->events->waits[thread];
    uint32_t suspect = is_parked(worker, thread) ? likelihood_of_cause(worker, wait) : 0;
    if (suspect > *most) *most = suspect, *site = wait->site;
  }
  return count;
}

[[noreturn]] static void report_stuck(Worker* worker) {
  if (was_stopped_early(worker->launch)) switch_to_main(worker);  // they wait for a block of which only a part ran
  Team* team = worker->team;
  constexpr uint32_t kKinds = 8;
  static Waiters groups[kKinds];
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  char all[1300] = "";
  size_t written = 0;
  uint32_t site = 0, most = 0;
  pthread_mutex_lock(&mutex);
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    Worker* member = team->members[rank];
    if (team->finished[rank] || !member->fibers) continue;
    uint32_t count = gather_waiters(member, groups, kKinds, &most, &site);
    for (uint32_t index = 0; index < count && written < 900; ++index) {
      const Waiters* group = &groups[index];
      char block[32] = "";
      if (team->size > 1) snprintf(block, sizeof block, "of block %u ", rank);
      written +=
          snprintf(all + written, sizeof all - written, "%s%u thread%s %sfrom thread %u on: %s", written ? "\n" : "",
                   group->count, group->count > 1 ? "s" : "", block, group->first, group->text);
    }
  }
  pthread_mutex_unlock(&mutex);
  report_at(worker, kReportStuck, site, "every live thread waits\n%s", all);
  abandon_launch(worker);
}

// ---- state at the start of a block

static bool copies_are_under_way(const Worker* worker) { return worker->events && worker->events->loads.count; }

bool begin_events(Worker* worker, uint64_t position) {
  Events* events = worker->events;
  if (!events) events = worker->events = (Events*)allocate_zeros(sizeof(Events));
  if (!events) return false;
  worker->random_state = worker->launch->seed * 0x9e3779b97f4a7c15ull + position * 0x2545f4914f6cdd1dull + 1;
  memset(worker->parked, 0, sizeof worker->parked);
  worker->uses_cluster_barrier = cluster_size(worker->launch) > 1;
  if (!events->used) return true;
  events->used = false;
  for (Mbarrier& barrier : events->barriers) free(barrier.released_clock);
  events->barriers.clear(), events->loads.clear(), events->stores.clear(), events->tried.clear();
  memset(events->waits, 0, sizeof events->waits);
  memset(events->store_groups, 0, sizeof events->store_groups);
  memset(events->registers, 0, sizeof events->registers);
  memset(events->cluster_waits, 0, sizeof events->cluster_waits);
  for (NamedBarrier& barrier : events->named) {
    barrier.arrived = barrier.generation = 0;
    if (barrier.released_clock) barrier.released_clock->interval = 0;
  }
  if (events->cluster_clock) events->cluster_clock->interval = 0;
  return true;
}
