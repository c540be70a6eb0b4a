// What asynchronous work has in common: threads that wait for it, lots that are drawn, addresses, and deadlocks.
//
// Nothing blocks an operating-system thread. A thread that waits is parked until what it waits for has happened; when
// nobody of its block can run, a copy lands, another block of the cluster goes on, or it is a deadlock. Work is as late
// as the program allows, threads run in turn; with a seed, lots decide who goes on, and some work is done at once.
#pragma once
#include "copies.hpp"

enum WaitKind : uint32_t { kNoWait, kWaitMbarrier, kWaitNamed, kWaitCluster, kWaitProduct };

struct Wait {
  WaitKind kind;
  uint32_t what, parity, site;
};

struct Mbarrier {  // beside the 64 bits in shared memory, which hold a mark
  uint32_t offset, count, pending;
  uint64_t phase;
  int64_t bytes;  // still to come; below 0 when they came before anyone expected them
  uint32_t made, arrived, arrived_thread, arrived_rank;
  ClockRow* told;
};

struct NamedBarrier {
  uint32_t arrived, generation, threads, site;
  ClockRow* told;
};

struct Bulk {  // a copy under way
  opb_tensor_map map;
  opb_place place;
  opb_bulk_kind kind;
  opb_type type;
  uint64_t from;  // of a copy without a map, which is `bytes` long
  uint32_t bytes, shared, barrier, group, thread, site, async_read;
  uint16_t clock;       // of the thread that started it
  bool own, inlined;    // by a thread of this block; whether `data` is what is to be written
  unsigned char* seen;  // what a store would have stored, had it been quick
  unsigned char data[16];
};

struct Warpgroup;

struct Events {
  bool used;
  List<Mbarrier> barriers;
  List<Bulk> loads, stores;
  List<uint32_t> tried;  // sites where a try_wait has answered false
  Wait waits[kMaxThreads];
  uint32_t store_groups[kMaxThreads];
  NamedBarrier named[16];
  Warpgroup* groups[kMaxThreads / 128];
  uint32_t registers[kMaxThreads / 128];
  uint32_t cluster_waits[kMaxThreads];
  ClockRow* cluster_told;
  float left[64 * 32], right[256 * 32];  // what a wgmma multiplies
};

static const char kMark[9] = "mbarrier";

static inline uint64_t draw(Worker* worker) {
  worker->lot ^= worker->lot << 13, worker->lot ^= worker->lot >> 7, worker->lot ^= worker->lot << 17;
  return worker->lot >> 11;
}
static inline bool by_lot(Worker* worker, uint32_t one_in) {
  return worker->launch->seed && draw(worker) % one_in == 0;
}

// ---- turns of the blocks of a cluster

static void hand_over(Team* team, uint32_t from, uint32_t to) {
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

// Lets another block of the cluster run; false when none can.
static bool pass_on(Worker* worker) {
  Team* team = worker->team;
  for (uint32_t step = 1; step < team->size; ++step) {
    uint32_t other = (worker->rank + step) % team->size;
    if (!can_run(team, other)) continue;
    hand_over(team, worker->rank, other);
    if (team->dead) abandon_launch(worker);
    return true;
  }
  return false;
}

// Where asynchronous work begins: with a seed, a thread that the lot falls on may go on first.
static Worker* enter_event() {
  Worker* worker = opb_worker;
  if (!worker->fibers) become_fibers(worker);
  worker->events->used = true;
  if (!by_lot(worker, 4)) return worker;
  if (by_lot(worker, 16)) pass_on(worker);
  uint32_t self = worker->current, from = (uint32_t)(draw(worker) % worker->threads);
  for (uint32_t step = 0; step < worker->threads; ++step) {
    uint32_t other = (from + step) % worker->threads;
    if (other == self || !(runnable(worker, other / kLanes) & bit_of(other))) continue;
    resume(worker, &worker->contexts[self], other);
    break;
  }
  return worker;
}

// What a block does to another one is late, too: the others run first, as far as they can.
static bool be_late(Worker* worker) { return (!worker->launch->seed || by_lot(worker, 2)) && pass_on(worker); }

[[noreturn]] static void fatal_event(Worker* worker) { abandon_launch(worker); }

static void something_happened(Worker* worker) { ++worker->team->progress; }

static inline bool is_parked(const Worker* worker, uint32_t thread) {
  return worker->parked[thread / kLanes] & bit_of(thread);
}
static inline void wake(Worker* worker, uint32_t thread) {
  halt(worker, worker->parked, thread / kLanes, bit_of(thread), false);
}

// Every thread that waits for this goes on, and looks again; the last of them is told.
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

// Returns when somebody has woken the thread, for whatever reason.
static void park(Worker* worker, Wait wait) {
  uint32_t self = worker->current, warp = self / kLanes;
  worker->events->waits[self] = wait;
  halt(worker, worker->parked, warp, bit_of(self), true);
  if (worker->trace) trace_lane_stopped(worker, warp);
  yield_to_next(worker);
  worker->events->waits[self].kind = kNoWait;
}

// ---- addresses: an offset, with the block's number in its cluster plus one above it; or a generic pointer

struct SharedPlace {
  Worker* worker;  // null when the address is nowhere in the cluster's shared memory
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

// How many bytes of shared memory a block has from an offset on; behind the dynamic array there are none.
static uint32_t shared_room(const Worker* worker, uint32_t offset) {
  uint32_t dynamic = (uint32_t)(worker->dynamic_base - worker->shared_base);
  uint32_t canary = dynamic + (uint32_t)(kDynamicSharedBytes + kSharedCanaryBytes);
  uint32_t end =
      offset < dynamic || offset >= canary ? (uint32_t)worker->shared_bytes : dynamic + worker->launch->shared_bytes;
  return offset < end ? end - offset : 0;
}

// As kernels know it: from the start of the dynamic array on, where the place lies in it.
static int32_t told_offset(const Worker* worker, uint32_t offset) {
  uint32_t dynamic = (uint32_t)(worker->dynamic_base - worker->shared_base);
  return (int32_t)(offset >= dynamic ? offset - dynamic : offset);
}

// A range of shared memory that a copy or product touches; reports it and abandons the launch when there is none.
static SharedPlace checked_range(Worker* worker, uint64_t address, uint32_t bytes, const char* who, uint32_t site) {
  SharedPlace place = shared_place(worker, address);
  if (!place.worker) {
    report_at(worker, kReportBeyondShared, site, "%s at %#llx, which is no shared memory of the block or its cluster",
              who, (unsigned long long)address);
    fatal_event(worker);
  }
  uint32_t room = shared_room(place.worker, place.offset);
  if (room < bytes) {
    report_at(worker, kReportBeyondShared, site,
              "%s of %u bytes at byte %d of shared memory, of which %u are left; the launch asks for %u", who, bytes,
              told_offset(place.worker, place.offset), room, worker->launch->shared_bytes);
    fatal_event(worker);
  }
  return place;
}

// ---- deadlocks: who waits for what, and what is missing

static int describe_wait(const Worker* worker, uint32_t thread, char* text, size_t room) {
  const Wait* wait = &worker->events->waits[thread];
  uint32_t warp = thread / kLanes, bit = bit_of(thread);
  if (worker->parked[warp] & bit && wait->kind == kWaitMbarrier) {
    for (const Mbarrier& it : worker->events->barriers) {
      if (it.offset != wait->what) continue;
      int written = snprintf(
          text, room,
          "at @%x@ for phase %llu (parity %u) of the mbarrier at byte %d of shared memory (made at @%x@), which lacks",
          wait->site, (unsigned long long)it.phase, (unsigned)(it.phase & 1), told_offset(worker, it.offset), it.made);
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
    int written = snprintf(text, room, "at @%x@ for the other warps of its warpgroup to issue the same wgmma", wait->site);
    if (!exited) return written;
    return written + snprintf(text + written, room - written, ", of which %u threads have exited", exited);
  }
  const char* what = worker->at_barrier[warp] & bit ? "__syncthreads()" : "the other lanes of its warp";
  return snprintf(text, room, "at line %u for %s", worker->waiting_site[thread].line, what);
}

// How likely a wait is the one to look at: something has come and something is missing, and few wait for it.
static uint32_t suspicion(Worker* worker, const Wait* wait) {
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

struct Waiters {  // threads of a block that wait alike
  uint32_t first, count;
  char text[400];
};

// Those of one block; more kinds than there is room for are left out. Finds the wait that most deserves to be looked at.
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
    uint32_t suspect = is_parked(worker, thread) ? suspicion(worker, wait) : 0;
    if (suspect > *most) *most = suspect, *site = wait->site;
  }
  return count;
}

[[noreturn]] static void report_stuck(Worker* worker) {
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
      written += snprintf(all + written, sizeof all - written, "%s%u thread%s %sfrom thread %u on: %s", written ? "\n" : "",
                          group->count, group->count > 1 ? "s" : "", block, group->first, group->text);
    }
  }
  pthread_mutex_unlock(&mutex);
  report_at(worker, kReportStuck, site, "every live thread waits\n%s", all);
  fatal_event(worker);
}

// ---- when nobody can run

static bool copies_are_under_way(const Worker* worker) { return worker->events && worker->events->loads.count; }

bool begin_events(Worker* worker, uint64_t position) {
  Events* events = worker->events;
  if (!events) events = worker->events = (Events*)allocate_zeros(sizeof(Events));
  if (!events) return false;
  worker->lot = worker->launch->seed * 0x9e3779b97f4a7c15ull + position * 0x2545f4914f6cdd1dull + 1;
  memset(worker->parked, 0, sizeof worker->parked);
  worker->may_meet = cluster_size(worker->launch) > 1;
  if (!events->used) return true;
  events->used = false;
  for (Mbarrier& barrier : events->barriers) free(barrier.told);
  events->barriers.clear(), events->loads.clear(), events->stores.clear(), events->tried.clear();
  memset(events->waits, 0, sizeof events->waits);
  memset(events->store_groups, 0, sizeof events->store_groups);
  memset(events->registers, 0, sizeof events->registers);
  memset(events->cluster_waits, 0, sizeof events->cluster_waits);
  for (NamedBarrier& barrier : events->named) {
    barrier.arrived = barrier.generation = 0;
    if (barrier.told) barrier.told->interval = 0;
  }
  if (events->cluster_told) events->cluster_told->interval = 0;
  return true;
}
