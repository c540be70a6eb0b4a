// Collects reports, and turns a kernel's memory fault into a report, so that the Python process survives the fault.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "memory.hpp"
#include "scheduler.hpp"

constexpr uint32_t kMaxReports = 256;
static Report reports[kMaxReports];
static uint32_t report_count;
static pthread_mutex_t report_mutex = PTHREAD_MUTEX_INITIALIZER;

// Returns whether a report names lanes. Lanes differ between warps, so only the first such report of a line is stored.
static bool names_lanes(const Report* fresh) {
  return fresh->kind == kReportWarpMask || fresh->kind == kReportOutsideMask;
}

// Returns whether a report is of a race between two warps, which __syncwarp() does not prevent.
static bool is_between_warps(uint32_t kind, uint32_t warp, uint32_t other_warp) {
  return (kind == kReportSharedRace || kind == kReportThreadRace) && warp != other_warp;
}
static bool is_between_warps(const Report* race) { return is_between_warps(race->kind, race->warp, race->other_warp); }

// Returns the stored report, so that the caller can count repetitions; null if the table is full. Of the races at one
// line, the first race between two warps is stored, because its remedy prevents all of them.
static Report* add_report(const Report* fresh) {
  pthread_mutex_lock(&report_mutex);
  Report* kept = nullptr;
  for (uint32_t index = 0; index < report_count && !kept; ++index) {
    Report* known = &reports[index];
    bool same = known->kind == fresh->kind && known->tag == fresh->tag && known->line == fresh->line &&
                known->program_counter == fresh->program_counter &&
                (strcmp(known->text, fresh->text) == 0 || names_lanes(fresh));
    if (!same) continue;
    const uint32_t count = known->count + 1;
    if (is_between_warps(fresh) && !is_between_warps(known)) *known = *fresh;
    known->count = count;
    kept = known;
  }
  if (!kept && report_count < (fresh->kind == kReportSameValue ? kMaxReports / 4 : kMaxReports)) {
    kept = &reports[report_count++];
    *kept = *fresh;
  }
  pthread_mutex_unlock(&report_mutex);
  return kept;
}

static Report blank_report(const Worker* worker, ReportKind kind, const char* text) {
  Report fresh;
  memset(&fresh, 0, sizeof fresh);
  fresh.kind = kind;
  fresh.count = 1;
  fresh.tag = worker->launch->tag;
  fresh.shared_bytes = worker->launch->shared_bytes;
  fresh.block = opb_current.block;
  fresh.thread = opb_current.thread;
  snprintf(fresh.text, sizeof fresh.text, "%s", text);
  return fresh;
}

void report(Worker* worker, ReportKind kind, Site site, uint32_t other_line, const char* text) {
  Report fresh = blank_report(worker, kind, text);
  fresh.line = site.line;
  fresh.other_line = other_line;
  snprintf(fresh.file, sizeof fresh.file, "%s", site.file ? site.file : "");
  add_report(&fresh);
}

void report_fault(Worker* worker, ReportKind kind, uint64_t program_counter, uint64_t address, const char* text) {
  Report fresh = blank_report(worker, kind, text);
  const Launch* launch = worker->launch;
  bool inside = program_counter >= launch->module_base && program_counter < launch->module_end;
  fresh.program_counter = inside ? program_counter - launch->module_base : 0;
  fresh.address = address;
  add_report(&fresh);
}

// Returns the return address of a call relative to its module, which line tables describe.
static inline uint32_t site_of(const Worker* worker, const void* program_counter) {
  return (uint32_t)((uintptr_t)program_counter - worker->launch->module_base);
}

// Adds a report of asynchronous work at an instruction of the kernel; the formatted text can name source positions as
// @%x@.
static __attribute__((noinline, format(printf, 4, 5))) void report_at(Worker* worker, ReportKind kind, uint32_t site,
                                                                      const char* text, ...) {
  Report fresh = blank_report(worker, kind, "");
  fresh.program_counter = site;
  fresh.instructions = kind == kReportTouchedSums ? 0 : 1;
  va_list arguments;
  va_start(arguments, text);
  vsnprintf(fresh.text, sizeof fresh.text, text, arguments);
  va_end(arguments);
  add_report(&fresh);
}

// Ends the running block if a block of its cluster has ended whose shared memory it uses. That is the kernel's mistake
// and ends the launch, unless the other block was stopped early.
static void require_running(Worker* worker, const Worker* owner, uint32_t site, const char* what, const char* place) {
  if (!worker->team->finished[owner->rank]) return;
  if (was_stopped_early(worker->launch)) switch_to_main(worker);
  report_at(worker, kReportClusterExit, site, "%s %s that has ended: a cluster must meet before its blocks leave", what,
            place);
  abandon_launch(worker);
}

struct MachineState {
  uint64_t program_counter, stack_pointer;
};

static MachineState machine_state(const ucontext_t* context) {
#if defined(__x86_64__)
  return {(uint64_t)context->uc_mcontext.gregs[REG_RIP], (uint64_t)context->uc_mcontext.gregs[REG_RSP]};
#elif defined(__aarch64__)
  return {context->uc_mcontext.pc, context->uc_mcontext.sp};
#else
  return {0, 0};
#endif
}

static void set_machine_state(ucontext_t* context, MachineState state) {
#if defined(__x86_64__)
  context->uc_mcontext.gregs[REG_RIP] = (greg_t)state.program_counter;
  context->uc_mcontext.gregs[REG_RSP] = (greg_t)state.stack_pointer;
#elif defined(__aarch64__)
  context->uc_mcontext.pc = state.program_counter;
  context->uc_mcontext.sp = state.stack_pointer;
#else
  (void)context, (void)state;
#endif
}

static void abandon_after_fault() { abandon_launch(opb_worker); }

static constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kFaultSignalCount = 4;
static struct sigaction previous_actions[kFaultSignalCount];

static ReportKind fault_kind(const Worker* worker, int signal_number, uintptr_t address) {
  if (signal_number == SIGFPE) return kReportArithmetic;
  if (signal_number == SIGILL) return kReportTrap;
  size_t into_stacks = address - (uintptr_t)worker->stacks;
  bool guard = into_stacks < (size_t)worker->stack_count * kStackBytes && into_stacks % kStackBytes < kPageBytes;
  return guard ? kReportStackOverflow : kReportFault;
}

static void on_fault(int signal_number, siginfo_t* info, void* raw_context) {
  Worker* worker = opb_worker;
  ucontext_t* context = (ucontext_t*)raw_context;
  MachineState state = machine_state(context);
  size_t stack_bytes = worker ? (size_t)worker->stack_count * kStackBytes : 0;
  if (!worker || state.stack_pointer - (uintptr_t)worker->stacks >= stack_bytes) {
    // Not a kernel's fault: restore the previous handler; the instruction repeats and reaches it.
    for (int index = 0; index < kFaultSignalCount; ++index) {
      if (kFaultSignals[index] == signal_number) sigaction(signal_number, &previous_actions[index], nullptr);
    }
    return;
  }
  uintptr_t address = (uintptr_t)info->si_addr;
  ReportKind kind = fault_kind(worker, signal_number, address);
  report_fault(worker, kind, state.program_counter, address, signal_number == SIGILL ? "illegal instruction" : "");
  // No fiber runs any more: any stack can be used, and the top of the first one is mapped.
  uintptr_t top = (uintptr_t)worker->stacks + kStackBytes / 2;
  set_machine_state(context, {(uint64_t)abandon_after_fault, (top & ~(uintptr_t)15) - 8});
}

bool use_signal_stack() {
  stack_t stack;
  stack.ss_size = 64 << 10;
  stack.ss_sp = allocate_zeros(stack.ss_size);
  stack.ss_flags = 0;
  return stack.ss_sp && sigaltstack(&stack, nullptr) == 0;
}

// Installs the handlers during a launch only, because at other times Python handles these signals.
static void install_fault_handlers() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int index = 0; index < kFaultSignalCount; ++index) {
    sigaction(kFaultSignals[index], &action, &previous_actions[index]);
  }
}

static void restore_fault_handlers() {
  for (int index = 0; index < kFaultSignalCount; ++index) {
    sigaction(kFaultSignals[index], &previous_actions[index], nullptr);
  }
}
