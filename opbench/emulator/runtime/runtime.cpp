// Executes compiled kernels as a GPU would, one block per worker at a time; the entry points that Python and kernels
// call.
//
// One translation unit, so that a barrier inlines down to the stack switch. It uses no C++ library: a compiler without
// one for this machine (zig on a cold cache) links it in 0.04 s.
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "blocks.hpp"
#include "faults.hpp"
#include "instrument.hpp"
#include "copies.hpp"
#include "clusters.hpp"
#include "pool.hpp"
#include "scheduler.hpp"
#include "warp.hpp"
#include "fragments.hpp"
#include "numbers.hpp"

// In static thread-local memory from the start: a module that expects them there does not load after another placement.
__thread opb_coordinates opb_current __attribute__((tls_model("initial-exec")));
__thread Worker* opb_worker __attribute__((tls_model("initial-exec")));
__thread AccessFilter opb_access_filter __attribute__((tls_model("initial-exec")));

extern "C" {

void opb_syncthreads(const char* file, unsigned line) { wait_at_barrier(opb_worker, Site{file, line}); }

int opb_syncthreads_reduce(unsigned kind, int predicate, const char* file, unsigned line) {
  Worker* worker = opb_worker;
  int truth = predicate != 0;
  worker->reduction[OPB_BARRIER_COUNT] += truth;
  worker->reduction[OPB_BARRIER_AND] &= truth;
  worker->reduction[OPB_BARRIER_OR] |= truth;
  wait_at_barrier(worker, Site{file, line}, kind);
  return worker->reduction_result[kind];
}

unsigned long long opb_warp(unsigned mask, unsigned kind, unsigned long long value, int source_lane, const char* file,
                            unsigned line) {
  return warp_operation(opb_worker, mask, kind, value, source_lane, Site{file, line});
}

void* const* opb_share_pointers(void* pointer, const char* file, unsigned line) {
  return share_pointers(opb_worker, pointer, Site{file, line});
}

void opb_require_whole_tiles(unsigned size, const char* file, unsigned line) {
  Worker* worker = opb_worker;
  if (worker->threads % size == 0) return;
  char text[120];
  snprintf(text, sizeof text, "a tiled partition needs a multiple of %u threads; the block has %u", size,
           worker->threads);
  report(worker, kReportPartialWarp, Site{file, line}, 0, text);
}

void opb_multiply(opb_type a_type, opb_type b_type, unsigned k, void* sums, const unsigned* a, const unsigned* b,
                  const char* file, unsigned line) {
  Worker* worker = opb_worker;
  const Site site{file, line};
  switch (a_type) {
    case OPB_S8:
      return multiply_fragments<OPB_S8>(worker, k, (int32_t*)sums, a, b, b_type, site);
    case OPB_E4M3:
      return multiply_fragments<OPB_E4M3>(worker, k, (float*)sums, a, b, b_type, site);
    case OPB_E5M2:
      return multiply_fragments<OPB_E5M2>(worker, k, (float*)sums, a, b, b_type, site);
    case OPB_TF32:
      return multiply_fragments<OPB_TF32>(worker, k, (float*)sums, a, b, b_type, site);
    case OPB_BF16:
      return multiply_fragments<OPB_BF16>(worker, k, (float*)sums, a, b, b_type, site);
    default:
      return multiply_fragments<OPB_F16>(worker, k, (float*)sums, a, b, b_type, site);
  }
}

char* opb_shared_base(void) { return opb_worker->shared_base; }

// Called in spin loops: lets the block's next thread run, then other workers.
void opb_yield(void) {
  Worker* worker = opb_worker;
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current;
  for (uint32_t step = 1; step < worker->threads; ++step) {
    // Each time round the threads, the other blocks run: several threads of this block may all wait for another block.
    // A traced launch does so once no thread makes progress.
    if (!worker->trace && self + step == worker->threads) run_other_block(worker);
    uint32_t other = (self + step) % worker->threads;
    if (runnable(worker, other / kLanes) & bit_of(other)) {
      resume(worker, &worker->contexts[self], other);
      return;
    }
  }
  if (!run_other_block(worker)) sched_yield();
}

unsigned long long opb_clock(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
#endif
}

void opb_trap(const char* message, const char* file, unsigned line) {
  report(opb_worker, kReportTrap, Site{file, line}, 0, message);
  abandon_launch(opb_worker);
}

// Runs one launch to its end.
OPB_API LaunchResult opb_launch(Launch* launch) {
  launch->block_count = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
  launch->next_block = 0;
  launch->aborted = launch->unfinished = 0;
  uint64_t clusters = launch->sample_count ? launch->sample_count : launch->block_count / cluster_size(launch);
  if (launch->workers > clusters) launch->workers = (uint32_t)clusters;
  ModuleSearch search = {(uintptr_t)launch->entry, 0, 0, nullptr, 0};
  dl_iterate_phdr(find_module, &search);
  launch->module_base = search.base;
  launch->module_end = search.end;
  install_fault_handlers();
  if (launch->spins || launch->block_milliseconds) install_tick();
  bool started = run_in_pool(launch);
  restore_fault_handlers();
  fflush(stdout);
  if (!started) return kLaunchWithoutThread;
  return launch->aborted ? kLaunchAbandoned : kLaunchDone;
}

// Returns the bytes of the first refused request since the last call; 0 if none. Results after a refusal are not valid.
OPB_API uint64_t opb_take_refused_bytes() { return __atomic_exchange_n(&refused_bytes, 0, __ATOMIC_RELAXED); }

// For tests: refuse the n-th request for memory from now on; 0: none.
OPB_API void opb_refuse_memory(uint64_t number) { __atomic_store_n(&requests_to_refusal, number, __ATOMIC_RELAXED); }

// The table of numbers that Python compares with its own when it loads the runtime.
OPB_API const SharedNumber* opb_shared_numbers(uint32_t* count) {
  *count = sizeof kSharedNumbers / sizeof *kSharedNumbers;
  return kSharedNumbers;
}

// Copies the collected reports to `out`, removes them, and returns their number.
OPB_API unsigned opb_take_reports(Report* out) {
  pthread_mutex_lock(&report_mutex);
  unsigned count = report_count;
  memcpy(out, reports, count * sizeof(Report));
  report_count = 0;
  pthread_mutex_unlock(&report_mutex);
  return count;
}
}
