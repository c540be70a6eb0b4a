// Makes spin loops yield to the threads that they wait for, and reports a hang if no thread makes progress.
//
// Traced launches: poll_location() handles each volatile or atomic load before the load is checked for races. A load
// that reads an unchanged value yields; after kIdlePolls such loads without a store, the launch is reported as a hang.
// Untraced launches: atomic and volatile accesses yield every few times, and a timer makes other loops yield.
#pragma once
#include "bulk.hpp"

extern "C" void opb_yield(void);

// The number of polls without a change or a store after which a launch hangs; threads that are not at a barrier take
// turns.
constexpr uint32_t kIdlePolls = 8 * kMaxThreads;

void trace_progress(Worker* worker) { worker->trace->idle = 0; }

static int describe_location(const Worker* worker, uintptr_t address, char* text, size_t room) {
  uintptr_t offset = address - (uintptr_t)worker->shared_base, base = worker->launch->module_base;
  if (offset < worker->shared_bytes) return snprintf(text, room, "#s%lx#", (unsigned long)offset);
  if (address >= base && address < worker->launch->module_end) {
    return snprintf(text, room, "#m%lx#", (unsigned long)(address - base));
  }
  return snprintf(text, room, "#g%lx#", (unsigned long)address);
}

static int describe_idle(const Worker* worker, uint32_t thread, char* text, size_t room) {
  const Trace* trace = worker->trace;
  if (!trace->polling[thread]) return describe_wait(worker, thread, text, room);
  const Poll* poll = &trace->polls[thread][trace->poll_site[thread] % kPolls];
  int written = snprintf(text, room, "at @%x@ for another value in ", poll->site);
  return written + describe_location(worker, poll->address, text + written, room - written);
}

// Reports a hang, with the location that each thread polls.
[[noreturn]] static void report_idle(Worker* worker, uint32_t site, uintptr_t address) {
  char all[1200] = "", last[300] = "", own[300];
  size_t written = 0;
  uint32_t count = 0, first = 0;
  for (uint32_t thread = 0; thread <= worker->threads && written < sizeof all - 400; ++thread) {
    own[0] = 0;
    if (thread < worker->threads) {
      if (!(worker->live[thread / kLanes] & bit_of(thread))) continue;
      describe_idle(worker, thread, own, sizeof own);
    }
    if (strcmp(own, last) == 0) {
      ++count;
      continue;
    }
    if (count) {
      written += snprintf(all + written, sizeof all - written, "%s%u thread%s from thread %u on: %s",
                          written ? "\n" : "", count, count > 1 ? "s" : "", first, last);
    }
    memcpy(last, own, sizeof last);
    count = 1, first = thread;
  }
  uintptr_t offset = address - (uintptr_t)worker->shared_base;
  const char* hint = offset < worker->shared_bytes || worker->launch->block_count == 1
                         ? ""
                         : "\nblocks run one after another here: one may wait for those that have begun before it only";
  report_at(worker, kReportStuck, site, "no thread makes progress\n%s%s", all, hint);
  abandon_launch(worker);
}

// Records that a thread polls a location. If the thread reads the same value as before, it yields to other threads.
static __attribute__((noinline)) void poll_location(Worker* worker, uint32_t site, uintptr_t address, uint32_t bytes) {
  Trace* trace = worker->trace;
  uint32_t self = worker->current;
  Poll seen = {site, trace->interval, address, trace->plain, 0, own_clock(trace, self)};
  memcpy(&seen.value, (const void*)address, bytes < 8 ? bytes : 8);
  Poll* before = &trace->polls[self][site % kPolls];
  bool same =
      before->site == site && before->address == address && before->plain == seen.plain && before->value == seen.value;
  *before = seen;
  trace->polling[self] = same;
  if (!same) {
    trace->idle = 0;
    return;
  }
  trace->poll_site[self] = site;
  if (++trace->idle > kIdlePolls) {
    trace->idle = 0;
    if (copies_are_under_way(worker)) {
      complete_next_load(worker);
    } else if (!run_other_block(worker)) {
      if (!worker->fibers) become_fibers(worker);
      report_idle(worker, site, address);
    }
  }
  bool is_volatile = trace->is_volatile, report_at_once = trace->report_at_once, bypasses_l1 = trace->bypasses_l1;
  uint32_t word = trace->word;
  trace->is_volatile = trace->report_at_once = trace->bypasses_l1 = false;
  trace->word = 0;
  opb_yield();
  trace->is_volatile = is_volatile, trace->report_at_once = report_at_once, trace->bypasses_l1 = bypasses_l1;
  trace->word = word;
}

static void poll_by_fence(Worker* worker) {
  Trace* trace = worker->trace;
  if (trace->plain) poll_location(worker, site_of(worker, __builtin_return_address(0)), trace->plain, 1);
}

// Handles a volatile or atomic access: polling, and the releases and acquires of synchronisation.
static __attribute__((noinline)) void record_flag_access(Worker* worker, const Region* region, uintptr_t address,
                                                         uint32_t bytes, uint32_t access, uint32_t site) {
  Trace* trace = worker->trace;
  bool reads = access != OPB_ACCESS_STORE, writes = access != OPB_ACCESS_LOAD;
  if (reads) poll_location(worker, site, address, bytes);
  if (writes) note_update(trace, address, bytes, access);
  synchronise(worker, trace, address, trace->word, reads, writes, region->space != kShared || worker->team->size > 1);
}

// ---- a traced build that runs untraced: atomic operations and volatile accesses yield to other threads

constexpr uint32_t kAccessesBeforeYield = 64;

// With a seed, a pseudo-random thread runs next, so that the order of accesses varies.
static __attribute__((noinline)) void yield_at_random(Worker* worker) {
  if (next_random(worker) & 3) return;
  if (!worker->fibers) become_fibers(worker);
  resume_other(worker, (uint32_t)(worker->random_state >> 16) % worker->threads);
}

static inline void vary_order(Worker* worker) {
  if (!worker || !worker->launch || worker->trace) return;
  if (worker->launch->seed) yield_at_random(worker);
  // Without this, a spin loop would run until the next timer tick.
  if (worker->launch->spins && ++worker->flag_accesses % kAccessesBeforeYield == 0) opb_yield();
}

// ---- untraced builds: on a timer tick, a thread that has not yielded since the last tick yields

constexpr int kTick = SIGURG;
constexpr long kTickNanoseconds = 1000000;

static void yield_to_other_warp(Worker* worker) {
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, warp = self / kLanes;
  for (uint32_t step = 1; step <= worker->warps; ++step) {  // other warps first: a lane seldom waits for its own warp
    // Each time round the warps, the other blocks run: several warps of this block may all wait for another block.
    if (warp + step == worker->warps) run_other_block(worker);
    uint32_t other = (warp + step) % worker->warps,
             ready = runnable(worker, other) & ~(other == warp ? bit_of(self) : 0);
    uint32_t behind = other == warp ? ready & ~(2 * bit_of(self) - 1) : ready;
    if (!ready) continue;
    resume(worker, &worker->contexts[self], other * kLanes + __builtin_ctz(behind ? behind : ready));
    return;
  }
  run_other_block(worker);
}

static void on_tick(int, siginfo_t*, void* raw_context) {
  Worker* worker = opb_worker;
  const Launch* launch = worker ? worker->launch : nullptr;
  if (!launch) return;
  // The pool signals its own threads only. In a team, the leader passes the tick on to the block whose turn it is.
  const Team* team = worker->team;
  const uint32_t holder = team ? __atomic_load_n(&team->holder, __ATOMIC_RELAXED) : 0;
  if (worker->rank == 0 && holder != 0) pthread_kill(team->members[holder]->system_thread, kTick);
  if (launch->block_milliseconds) {  // counts time in the runtime, too, which interprets instructions
    if (worker->ticking != worker->blocks_begun) worker->ticks = 0;
    worker->ticking = worker->blocks_begun;
    ++worker->ticks;
  }
  MachineState state = machine_state((const ucontext_t*)raw_context);
  // Switch only if the signal interrupted the kernel's code: the runtime's state may be inconsistent within the
  // runtime.
  if (state.program_counter < launch->module_base || state.program_counter >= launch->module_end) return;
  if (state.stack_pointer - (uintptr_t)worker->stacks >= (size_t)worker->stack_count * kStackBytes) return;
  // The block's time is over: skip its other threads and begin the next block.
  if (launch->block_milliseconds && worker->ticks > launch->block_milliseconds) {
    worker->launch->unfinished |= 1u << launch->sample;
    switch_to_main(worker);
  }
  if (!launch->spins || worker->trace) return;
  bool moved = worker->switches != worker->switches_before;
  worker->switches_before = worker->switches;
  if (!moved) yield_to_other_warp(worker);
}

static void install_tick() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  sigaction(kTick, &action, nullptr);
}
