// Implements mbarriers, named barriers and elect. A phase of an mbarrier ends when all threads have arrived and all
// expected bytes have landed.
#pragma once
#include "events.hpp"

static Mbarrier* find_mbarrier(Worker* owner, uint32_t offset) {
  for (Mbarrier& barrier : owner->events->barriers) {
    if (barrier.offset == offset) return &barrier;
  }
  return nullptr;
}

// Returns the mbarrier at an address; reports an address without an initialised mbarrier and an overwritten one.
static Mbarrier* known_mbarrier(Worker* worker, uint64_t address, const char* what, uint32_t site, Worker** owner) {
  SharedPlace place = shared_place(worker, address);
  Mbarrier* barrier = place.worker ? find_mbarrier(place.worker, place.offset) : nullptr;
  if (!barrier) {
    report_at(worker, kReportMbarrier, site,
              "%s at byte %d of shared memory, where no mbarrier.init has made an mbarrier", what,
              place.worker ? reported_offset(place.worker, place.offset) : (int32_t)place.offset);
    abandon_launch(worker);
  }
  *owner = place.worker;
  require_running(worker, place.worker, site, what, "at an mbarrier of a block");
  if (memcmp(place.worker->shared_base + place.offset, kMark, 8) != 0) {
    report_at(worker, kReportMbarrier, site,
              "%s at the mbarrier that was made at @%x@, which has been overwritten since", what, barrier->made);
    abandon_launch(worker);
  }
  return barrier;
}

// Ends the phase if it is complete, and returns the last thread that this wakes; kNobody if there is none.
static uint32_t end_phase_if_complete(Worker* worker, Worker* owner, Mbarrier* barrier) {
  count_progress(worker);
  if (barrier->pending || barrier->bytes) return kNobody;
  ++barrier->phase;
  barrier->pending = barrier->count;
  return wake_all(owner, kWaitMbarrier, barrier->offset);
}

static bool phase_is_over(const Mbarrier* barrier, uint32_t kind, uint64_t wanted) {
  return kind & OPB_WAIT_STATE ? barrier->phase != wanted : (barrier->phase & 1) != (wanted & 1);
}

// A try_wait may return false at any time. In a trace, the first one at each instruction of a block does, to find
// kernels that do not try again; with a seed, the choice is pseudo-random.
static bool returns_false_early(Worker* worker, uint32_t kind, uint32_t site) {
  if (kind & OPB_WAIT_BLOCKING) return false;
  if (worker->launch->seed) return at_random(worker, 4);
  if (!worker->trace) return false;
  for (uint32_t tried : worker->events->tried) {
    if (tried == site) return false;
  }
  worker->events->tried.add(site);
  return true;
}

// Synchronises blocks of a cluster through an mbarrier: an arrival releases, a wait acquires.
static void synchronise_at_barrier(Worker* worker, Worker* owner, const Mbarrier* barrier, bool waits) {
  Trace* trace = worker->trace;
  if (!trace || !trace->races || worker->team->size == 1) return;
  uintptr_t address = (uintptr_t)owner->shared_base + barrier->offset;
  synchronise(worker, trace, address, waits ? OPB_ACQUIRES : OPB_RELEASES, waits, !waits, true);
}

static void arrive_at(Worker* worker, Worker* owner, Mbarrier* barrier, uint32_t count, uint32_t site) {
  if (count > barrier->pending) {
    report_at(worker, kReportMbarrier, site,
              "more arrivals in a phase than the %u that mbarrier.init at @%x@ counts on; the last but this at @%x@",
              barrier->count, barrier->made, barrier->arrived);
    abandon_launch(worker);
  }
  if (owner == worker) release_clock(worker, &barrier->released_clock);
  synchronise_at_barrier(worker, owner, barrier, false);
  barrier->pending -= count;
  barrier->arrived = site;
  barrier->arrived_thread = worker->current;
  barrier->arrived_rank = worker->rank;
}

extern "C" {

char* opb_shared_pointer(unsigned long long address) {
  Worker* worker = opb_worker;
  if (address < 1u << 24) return worker->shared_base + address;
  SharedPlace place = shared_place(worker, address);
  if (!place.worker) return (char*)address;  // the address is not in the cluster, which is reported later
  // The address of an array is known once its block has begun.
  const bool begun = place.worker->shared_owner == worker->shared_owner;
  if (!begun && !worker->fibers) become_fibers(worker);
  while (place.worker->shared_owner != worker->shared_owner && run_other_block(worker)) {
  }
  const uint32_t site = site_of(worker, __builtin_return_address(0));
  require_running(worker, place.worker, site, "an address in", "shared memory of a block");
  return place.worker->shared_base + place.offset;
}

unsigned opb_shared_address(const void* pointer) {
  Worker* worker = opb_worker;
  uint64_t offset = (uint64_t)(uintptr_t)pointer - (uint64_t)(uintptr_t)worker->shared_base;
  if (offset < worker->shared_bytes) return (unsigned)offset;
  SharedPlace place = shared_place(worker, (uint64_t)(uintptr_t)pointer);
  return place.worker ? place.offset | (place.worker->rank + 1) << 24 : (unsigned)offset;
}

void opb_mbarrier_init(unsigned long long address, unsigned count, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at);
  SharedPlace place = checked_range(worker, address, 8, "an mbarrier", site);
  if (place.offset % 8 || count == 0 || count >= 1u << 20) {
    report_at(worker, kReportMbarrier, site,
              "mbarrier.init of %u arrivals at byte %d; it takes 1 to 1048575, and a multiple of 8", count,
              reported_offset(worker, place.offset));
    abandon_launch(worker);
  }
  Mbarrier* known = find_mbarrier(worker, place.offset);
  Mbarrier* barrier = known ? known : &worker->events->barriers.add({});
  free(barrier->released_clock);
  *barrier = {place.offset, count, count, 0, 0, site, 0, 0, 0, nullptr};
  memcpy(worker->shared_base + place.offset, kMark, 8);
}

void opb_mbarrier_forget(unsigned long long address, const void* at) {
  Worker *worker = enter_event(), *owner;
  Mbarrier* barrier = known_mbarrier(worker, address, "mbarrier.inval", site_of(worker, at), &owner);
  free(barrier->released_clock);
  owner->events->barriers.remove((uint32_t)(barrier - owner->events->barriers.items));
  memset(owner->shared_base + shared_place(worker, address).offset, 0xFF, 8);
}

unsigned long long opb_mbarrier_arrive(unsigned long long address, unsigned count, long long bytes, bool drops,
                                       const void* at) {
  Worker *worker = enter_event(), *owner;
  uint32_t site = site_of(worker, at);
  Mbarrier* barrier = known_mbarrier(worker, address, "an arrival", site, &owner);
  if (owner != worker && run_others_first(worker))
    barrier = known_mbarrier(worker, address, "an arrival", site, &owner);
  unsigned long long phase = barrier->phase;
  arrive_at(worker, owner, barrier, count, site);
  barrier->bytes += bytes;
  if (drops) barrier->count -= count;
  uint32_t waiter = end_phase_if_complete(worker, owner, barrier);
  // The waiting threads run first, so that work which this thread should have done before its arrival comes too late.
  if (waiter != kNobody && owner == worker && !worker->launch->seed) {
    resume(worker, &worker->contexts[worker->current], waiter);
  }
  return phase;
}

void opb_mbarrier_expect(unsigned long long address, long long bytes, const void* at) {
  Worker *worker = enter_event(), *owner;
  Mbarrier* barrier = known_mbarrier(worker, address, "mbarrier.expect_tx", site_of(worker, at), &owner);
  barrier->bytes += bytes;
  if (bytes < 0) {
    end_phase_if_complete(worker, owner, barrier);
  } else {
    count_progress(worker);
  }
}

// Returns whether the phase `wanted` is over. Like a GPU, it may return false early.
bool opb_mbarrier_over(unsigned long long address, unsigned kind, unsigned long long wanted, const void* at) {
  Worker *worker = enter_event(), *owner;
  uint32_t site = site_of(worker, at);
  Mbarrier* barrier = known_mbarrier(worker, address, "a wait", site, &owner);
  if (owner != worker) {
    report_at(worker, kReportIllegalInstruction, site,
              "a wait for an mbarrier of another block; only arrivals may be remote");
    abandon_launch(worker);
  }
  uint32_t offset = barrier->offset;
  if (!phase_is_over(barrier, kind, wanted)) {
    if (returns_false_early(worker, kind, site)) return false;
    park(worker, {kWaitMbarrier, offset, (uint32_t)wanted & 1, site});
    barrier = known_mbarrier(worker, address, "a wait", site, &owner);
    if (!phase_is_over(barrier, kind, wanted)) return false;
  }
  acquire_clock(worker, barrier->released_clock);
  synchronise_at_barrier(worker, owner, barrier, true);
  return true;
}

// Arrives on behalf of a thread's cp.async copies, which have landed by then; without .noinc it adds to the expected
// count.
void opb_copies_arrive(unsigned long long address, bool counted, const void* at) {
  Worker *worker = enter_event(), *owner;
  uint32_t site = site_of(worker, at);
  Mbarrier* barrier = known_mbarrier(worker, address, "an arrival of copies", site, &owner);
  opb_commit_copies();
  opb_wait_for_copies(0);
  if (!counted) ++barrier->pending;
  arrive_at(worker, owner, barrier, 1, site);
  end_phase_if_complete(worker, owner, barrier);
}

void opb_named_barrier(unsigned number, unsigned threads, bool waits, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at);
  if (number > 15 || threads % kLanes || threads == 0) {
    report_at(worker, kReportIllegalInstruction, site,
              "barrier %u of %u threads; there are barriers 0 to 15, of whole warps", number, threads);
    abandon_launch(worker);
  }
  NamedBarrier* barrier = &worker->events->named[number];
  if (barrier->arrived && barrier->threads != threads) {
    report_at(worker, kReportIllegalInstruction, site, "barrier %u of %u threads here and of %u at @%x@", number,
              threads, barrier->threads, barrier->site);
    abandon_launch(worker);
  }
  barrier->threads = threads;
  barrier->site = site;
  release_clock(worker, &barrier->released_clock);
  count_progress(worker);
  uint32_t generation = barrier->generation;
  if (++barrier->arrived >= threads) {
    barrier->arrived = 0;
    ++barrier->generation;
    wake_all(worker, kWaitNamed, number);
  }
  while (waits && barrier->generation == generation) park(worker, {kWaitNamed, number, 0, site});
  if (waits) acquire_clock(worker, barrier->released_clock);
}

void opb_set_registers(unsigned count, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at), all = 0, groups = (worker->threads + 127) / 128;
  if (count % 8 || count < 24 || count > 256) {
    report_at(worker, kReportIllegalInstruction, site, "setmaxnreg of %u; it takes a multiple of 8 from 24 to 256",
              count);
    abandon_launch(worker);
  }
  worker->events->registers[worker->current / 128] = count;
  for (uint32_t group = 0; group < groups; ++group) {
    if (!worker->events->registers[group]) return;
    all += worker->events->registers[group] * 128;
  }
  // A launch gives all threads the same number of registers, a multiple of 8.
  const uint32_t threads = (worker->threads + kLanes - 1) / kLanes * kLanes, each = 65536 / threads / 8 * 8;
  const uint32_t given = threads * (each < 256 ? each : 256);
  if (all <= given) return;
  report_at(worker, kReportStuck, site, "setmaxnreg waits for ever: the warpgroups ask for %u registers of %u", all,
            given);
  abandon_launch(worker);
}
}
