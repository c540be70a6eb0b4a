// Loops that wait for another thread: they give way, and when nothing else happens either, they are a hang.
#pragma once
#include "bulk.hpp"

extern "C" void opb_yield(void);

// So many looks at what does not change, in turn by all threads that are not at a barrier, with no store by anybody.
constexpr uint32_t kIdleLooks = 8 * kMaxThreads;

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

// A hang: who waits for what.
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

// A thread looks at what another one may change. Who sees the same again lets the others run first.
static __attribute__((noinline)) void look_again(Worker* worker, uint32_t site, uintptr_t address, uint32_t bytes) {
  Trace* trace = worker->trace;
  uint32_t self = worker->current;
  Poll seen = {site, address, trace->plain, 0};
  memcpy(&seen.value, (const void*)address, bytes < 8 ? bytes : 8);
  Poll* before = &trace->polls[self][site % kPolls];
  bool same = before->site == site && before->address == address && before->plain == seen.plain &&
              before->value == seen.value;
  *before = seen;
  trace->polling[self] = same;
  if (!same) {
    trace->idle = 0;
    return;
  }
  trace->poll_site[self] = site;
  if (++trace->idle > kIdleLooks) {
    trace->idle = 0;
    if (copies_are_under_way(worker)) {
      land_next(worker);
    } else if (!pass_on(worker)) {
      if (!worker->fibers) become_fibers(worker);
      report_idle(worker, site, address);
    }
  }
  bool is_volatile = trace->is_volatile, at_once = trace->at_once, around_l1 = trace->around_l1;
  uint32_t word = trace->word;
  trace->is_volatile = trace->at_once = trace->around_l1 = false;
  trace->word = 0;
  opb_yield();
  trace->is_volatile = is_volatile, trace->at_once = at_once, trace->around_l1 = around_l1;
  trace->word = word;
}

static void poll_by_fence(Worker* worker) {
  Trace* trace = worker->trace;
  if (trace->plain) look_again(worker, site_of(worker, __builtin_return_address(0)), trace->plain, 1);
}

// Volatile and atomic accesses: what they tell other threads and blocks, and what they learn of them.
static __attribute__((noinline)) void look_at_flag(Worker* worker, const Region* region, uintptr_t address,
                                                   uint32_t bytes, uint32_t access, uint32_t site) {
  Trace* trace = worker->trace;
  bool sees = access != OPB_ACCESS_STORE, tells = access != OPB_ACCESS_LOAD;
  if (sees) look_again(worker, site, address, bytes);
  synchronise(worker, trace, address, trace->word, sees, tells, region->space != kShared || worker->team->size > 1);
}

// ---- a traced build that runs untraced: others get their turn at atomic operations and volatile accesses

constexpr uint32_t kLooksBeforeYield = 64;

// With a seed, lots decide whose access comes first.
static __attribute__((noinline)) void give_way_by_lot(Worker* worker) {
  worker->lot ^= worker->lot << 13, worker->lot ^= worker->lot >> 7, worker->lot ^= worker->lot << 17;
  if (worker->lot >> 11 & 3) return;
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, from = (uint32_t)(worker->lot >> 16) % worker->threads;
  for (uint32_t step = 0; step < worker->threads; ++step) {
    uint32_t other = (from + step) % worker->threads;
    if (other == self || !(runnable(worker, other / kLanes) & bit_of(other))) continue;
    resume(worker, &worker->contexts[self], other);
    return;
  }
}

static inline void vary_order(Worker* worker) {
  if (!worker || !worker->launch || worker->trace) return;
  if (worker->launch->seed) give_way_by_lot(worker);
  // Who waits in a loop would else wait for the clock to tick.
  if (worker->launch->spins && ++worker->looks % kLooksBeforeYield == 0) opb_yield();
}

// ---- at full speed nothing is looked at: a clock ticks, and who has not given way since the last tick does it now

constexpr int kTick = SIGURG;
constexpr long kTickNanoseconds = 1000000;

static void give_way(Worker* worker) {
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, warp = self / kLanes;
  for (uint32_t step = 1; step <= worker->warps; ++step) {  // other warps first: a warp waits for itself seldom
    uint32_t other = (warp + step) % worker->warps, ready = runnable(worker, other) & ~(other == warp ? bit_of(self) : 0);
    uint32_t behind = other == warp ? ready & ~(2 * bit_of(self) - 1) : ready;
    if (!ready) continue;
    resume(worker, &worker->contexts[self], other * kLanes + __builtin_ctz(behind ? behind : ready));
    return;
  }
  pass_on(worker);
}

static void on_tick(int, siginfo_t*, void* raw_context) {
  Worker* worker = opb_worker;
  const Launch* launch = worker ? worker->launch : nullptr;
  if (!launch) return;
  if (launch->block_milliseconds) {  // counted wherever the time went: interpreted instructions are the runtime's
    if (worker->ticking != worker->blocks_begun) worker->ticks = 0;
    worker->ticking = worker->blocks_begun;
    ++worker->ticks;
  }
  MachineState state = machine_state((const ucontext_t*)raw_context);
  // Only where the kernel's own code stands still is everything of ours at rest.
  if (state.program_counter < launch->module_base || state.program_counter >= launch->module_end) return;
  if (state.stack_pointer - (uintptr_t)worker->stacks >= (size_t)worker->stack_count * kStackBytes) return;
  // Enough has been seen of this block: its other threads are left out, and the next one begins.
  if (launch->block_milliseconds && worker->ticks > launch->block_milliseconds) {
    worker->launch->cut_short |= 1u << launch->sample;
    switch_to_main(worker);
  }
  if (!launch->spins || worker->trace) return;
  bool moved = worker->switches != worker->switches_before;
  worker->switches_before = worker->switches;
  if (!moved) give_way(worker);
}

static void install_tick() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  sigaction(kTick, &action, nullptr);
}
