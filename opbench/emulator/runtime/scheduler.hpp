// Runs the CUDA threads of one block as fibers, and implements the barriers of a block.
//
// Threads run one after another on one stack until one of them waits; from then on each has its own stack. A thread
// that waits at a barrier or warp operation switches to the next runnable thread; the last one to arrive releases the
// others.
#pragma once
#include "worker.hpp"

static inline uint32_t bit_of(uint32_t thread) { return 1u << (thread % kLanes); }

static inline uint32_t runnable(const Worker* worker, uint32_t warp) {
  return worker->live[warp] & ~(worker->at_barrier[warp] | worker->at_warp[warp] | worker->halted[warp]);
}

static inline void halt(Worker* worker, uint32_t* why, uint32_t warp, uint32_t lanes, bool stop) {
  why[warp] = stop ? why[warp] | lanes : why[warp] & ~lanes;
  worker->halted[warp] = worker->paused[warp] | worker->parked[warp];
}

static inline void set_current(Worker* worker, uint32_t thread) {
  worker->current = thread;
  opb_current.thread = worker->coordinates[thread];
}

[[noreturn]] static inline void switch_to_main(Worker* worker) {
  context_switch(&worker->discarded, &worker->main_context);
  __builtin_unreachable();
}

void abandon_launch(Worker* worker) {
  worker->aborted = true;
  switch_to_main(worker);
}

static __attribute__((noinline)) uint32_t next_in_other_warps(Worker* worker) {
  uint32_t warp = worker->current / kLanes;
  for (uint32_t step = 0; step < worker->warps; ++step) {
    uint32_t other = (warp + step) % worker->warps, ready = runnable(worker, other);
    if (!ready && worker->at_active[other] && release_active_lanes(worker, other)) ready = runnable(worker, other);
    if (ready) return other * kLanes + __builtin_ctz(ready);
  }
  return kNobody;
}

// Returns the next runnable thread: first in the current warp, so that the lanes of a warp stay close together, then in
// others.
static inline uint32_t next_runnable(Worker* worker) {
  uint32_t warp = worker->current / kLanes, lane = worker->current % kLanes;
  uint32_t ready = runnable(worker, warp), later = ready & ~(1u << lane | ((1u << lane) - 1));
  if (later) return warp * kLanes + __builtin_ctz(later);
  if (ready) return warp * kLanes + __builtin_ctz(ready);
  return next_in_other_warps(worker);
}

static void fiber_entry();

static inline char* stack_of(Worker* worker, uint32_t thread) { return worker->stacks + (size_t)thread * kStackBytes; }

// The tops of stacks are staggered by five cache lines, which a switch touches: stacks of equal alignment would compete
// for the same sets of the caches and of the TLB.
static inline size_t stagger_of(uint32_t thread) { return thread * 5 * 64 % (kStackBytes / 4); }

static inline void resume(Worker* worker, Context* from, uint32_t thread) {
  uint32_t warp = thread / kLanes, bit = bit_of(thread);
  ++worker->switches;
  set_current(worker, thread);
  if (!(worker->started[warp] & bit)) {
    worker->started[warp] |= bit;
    context_make(&worker->contexts[thread], stack_of(worker, thread), kStackBytes - stagger_of(thread), fiber_entry);
  }
#ifndef OPB_UCONTEXT
  const char* top = (const char*)worker->contexts[(thread + 1) % kMaxThreads].stack_pointer;
  for (int line = 0; line < 5; ++line) __builtin_prefetch(top + 64 * line, 1);
#endif
  context_switch(from, &worker->contexts[thread]);
}

[[noreturn]] static void report_deadlock(Worker* worker) {
  Site site = worker->waiting_site[worker->current];
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    if (worker->live[thread / kLanes] & bit_of(thread)) {
      set_current(worker, thread);
      site = worker->waiting_site[thread];
      break;
    }
  }
  report(worker, kReportDeadlock, site, 0, "every live thread of the block waits");
  abandon_launch(worker);
}

static __attribute__((noinline)) uint32_t unblocked_thread(Worker* worker) {
  uint32_t next;
  do {
    unblock(worker);
    next = next_runnable(worker);
  } while (next == kNobody);
  return next;
}

static inline uint32_t next_or_unblock(Worker* worker) {
  uint32_t next = next_runnable(worker);
  return __builtin_expect(next != kNobody, 1) ? next : unblocked_thread(worker);
}

static inline void yield_to_next(Worker* worker) {
  uint32_t self = worker->current, next = next_or_unblock(worker);
  if (next == self) return;
  resume(worker, &worker->contexts[self], next);
}

static inline void release_barrier(Worker* worker) {
  if (worker->trace) trace_barrier(worker);
  for (uint32_t warp = 0; warp < worker->warps; ++warp) {
    worker->at_barrier[warp] = 0;
    worker->barrier_site[warp].line = 0;
  }
  worker->barrier_count = 0;
  memcpy(worker->reduction_result, worker->reduction, sizeof worker->reduction);
  worker->reduction[OPB_BARRIER_COUNT] = 0;
  worker->reduction[OPB_BARRIER_AND] = 1;
  worker->reduction[OPB_BARRIER_OR] = 0;
}

[[noreturn]] static void thread_exit(Worker* worker) {
  uint32_t warp = worker->current / kLanes;
  worker->live[warp] &= ~bit_of(worker->current);
  if (--worker->live_count == 0) switch_to_main(worker);
  if (worker->trace) trace_progress(worker);
  if (worker->at_warp[warp]) release_warp(worker, warp);
  if (worker->trace) trace_lane_stopped(worker, warp);
  if (worker->barrier_count == worker->live_count) release_barrier(worker);
  if (worker->uses_cluster_barrier) thread_left(worker);
  resume(worker, &worker->discarded, next_or_unblock(worker));
  __builtin_unreachable();
}

static void fiber_entry() {
  Worker* worker = opb_worker;
  worker->launch->entry(worker->launch->arguments);
  thread_exit(worker);
}

// Runs the threads one after another on the first stack until one waits: in many kernels, no thread waits for another.
static void direct_entry() {
  Worker* worker = opb_worker;
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    set_current(worker, thread);
    worker->launch->entry(worker->launch->arguments);
    if (worker->fibers) thread_exit(worker);
    if (worker->trace && thread % kLanes == kLanes - 1) trace_lane_stopped(worker, thread / kLanes);
  }
  switch_to_main(worker);
}

// Called at the first barrier or warp operation of a block: the threads that have not finished become fibers.
static void become_fibers(Worker* worker) {
  uint32_t finished = worker->current;
  worker->fibers = true;
  worker->live_count = worker->threads - finished;
  worker->barrier_count = 0;
  for (uint32_t warp = 0; warp < worker->warps; ++warp) {
    uint32_t first = warp * kLanes, count = worker->threads - first;
    uint32_t present = count >= kLanes ? ~0u : (1u << count) - 1;
    uint32_t gone = finished <= first ? 0 : finished - first >= kLanes ? ~0u : (1u << (finished - first)) - 1;
    worker->live[warp] = present & ~gone;
    worker->started[warp] = worker->at_barrier[warp] = worker->at_warp[warp] = worker->at_active[warp] = 0;
    worker->halted[warp] = worker->paused[warp] = worker->parked[warp] = 0;
    worker->barrier_site[warp].line = 0;
  }
  worker->started[finished / kLanes] |= bit_of(finished);
}

constexpr uint32_t kPlainBarrier = OPB_BARRIER_OR + 1;

// Suspends a thread at a barrier, and reports undefined uses of the barrier. CUDA C++ Programming Guide:
// __syncthreads() in conditional code must be reached by the whole block or by none of it. PTX ISA, barrier.sync (which
// it becomes, on barrier 0): the threads of one warp must execute the same instruction, and .red must not meet .sync at
// one barrier; different warps may arrive by different instructions. Since Volta a barrier waits for all threads that
// have not exited (Volta Tuning Guide, "Independent Thread Scheduling"). So lanes of a warp at different barriers are a
// finding, and so are mixed kinds. Exited threads and whole warps at different barriers are no finding: hardware
// defines both, and warp-specialised kernels rely on them. (compute-sanitizer's synccheck reports these, too, as
// "divergent threads in block".)
static inline void wait_at_barrier(Worker* worker, Site site, uint32_t kind = kPlainBarrier) {
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, warp = self / kLanes;
  worker->waiting_site[self] = site;
  worker->at_barrier[warp] |= bit_of(self);
  Site* first = &worker->barrier_site[warp];
  if (first->line == 0) {
    *first = site;
  } else if (first->line != site.line) {
    report(worker, kReportDivergentBarrier, site, first->line, "lanes of a warp wait");
  }
  if (worker->barrier_count == 0) {
    worker->block_site = site;
    worker->barrier_kind = kind;
  } else if (worker->barrier_kind != kind && first->line == site.line) {
    report(worker, kReportDivergentBarrier, site, worker->block_site.line, "threads wait for different results");
  }
  if (worker->trace) trace_lane_stopped(worker, warp);
  if (++worker->barrier_count == worker->live_count) {
    release_barrier(worker);
    return;
  }
  if (worker->at_warp[warp]) release_warp(worker, warp);
  yield_to_next(worker);
}
