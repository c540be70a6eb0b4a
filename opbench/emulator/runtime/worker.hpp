// Declares the state that all headers share: the launch, the worker (an operating-system thread that executes blocks),
// its CUDA threads, and the team of blocks that run concurrently.
//
// Python fills a Launch and calls opb_launch; each worker takes the next block, runs its threads as fibers
// (scheduler.hpp), and adds Reports. This header includes no other header of the runtime but context.hpp. The functions
// declared at its end are those that a lower header calls in a higher one.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "../include/opbench_cpu/abi.hpp"
#include "context.hpp"

constexpr uint32_t kLanes = 32;
constexpr uint32_t kGroupThreads = 128;  // of a warpgroup
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxWarps = kMaxThreads / kLanes;
constexpr size_t kStackBytes = 640 << 10;  // a GPU's 512 KiB of local memory, and space for calls of the runtime
constexpr size_t kPageBytes = 4096;
constexpr uint32_t kNobody = ~0u;
constexpr uint32_t kMaxSamples = 16;

// The kinds of reports: kReportFault is 1, and so on. Untraced launches report only kinds up to kReportArithmetic.
// Kinds from kReportStuck on concern asynchronous work; their texts name other places as @1a2b@. The first line of a
// text is the message; the other lines are details. PlainRead: a plain load of a location that others update by atomic
// operations.
#define REPORT_KINDS(KIND)                                                                                         \
  KIND(Fault)                                                                                                      \
  KIND(StackOverflow) KIND(SharedOverrun) KIND(DivergentBarrier) KIND(WarpMask) KIND(Deadlock) KIND(Trap)          \
      KIND(Arithmetic) KIND(GlobalBounds) KIND(SharedBounds) KIND(UninitialisedShared) KIND(UninitialisedGlobal)   \
          KIND(SharedRace) KIND(GlobalRace) KIND(Misaligned) KIND(UnfinishedCopy) KIND(Stuck) KIND(UnfinishedBulk) \
              KIND(UnfinishedProduct) KIND(EarlyOverwrite) KIND(MissingFence) KIND(Mbarrier) KIND(ClusterExit)     \
                  KIND(IllegalInstruction) KIND(BeyondShared) KIND(DifferentProducts) KIND(TouchedSums)            \
                      KIND(MissingWait) KIND(ThreadRace) KIND(OutsideMask) KIND(Index) KIND(Overflow) KIND(Local)  \
                          KIND(SameValue) KIND(PartialWarp) KIND(ConstantStore) KIND(PlainRead)
#define REPORT_KIND(NAME) kReport##NAME,
enum ReportKind : uint32_t { kReportNone, REPORT_KINDS(REPORT_KIND) };

// A source position in the .cu, as the compiler wrote it into the call.
struct Site {
  const char* file;
  uint32_t line;
};

// Read by Python through ctypes: numbers.hpp lists the fields.
struct Report {
  uint32_t kind, line, other_line, count;
  uint64_t program_counter;  // relative to the module's base; 0 outside of the module
  uint64_t address;
  uint64_t other_program_counter;  // the earlier access of a race
  uint64_t caller;                 // the call of the function that contains program_counter; 0 if it was inlined
  uint3 block, thread;
  uint3 other_block, other_thread;
  uint32_t bytes, access, other_access;
  uint32_t warp, other_warp;
  // Flags. 1: this access is an instruction's, not C++ code's; 2: the other access is. 4: both accesses are volatile.
  // 8: other_block is known and other_thread is not. 16: the scope of one access is too narrow. 32: this thread has
  // read the other one's release without an acquire fence. 64: this thread has read a flag or lock.
  uint32_t instructions;
  uint32_t tag, shared_bytes;  // the launch's kernel and module, and the size of its dynamic shared array
  char file[240];
  char text[1400];
};

struct Trace;

// Written by Python through ctypes: numbers.hpp lists the fields.
struct Launch {
  void (*entry)(void**);
  void** arguments;
  char* (*touch_shared)();
  char* (*dynamic_shared)();
  uint3 grid, block;
  uint32_t shared_bytes, tag, workers, aborted;
  uint64_t order_multiplier, order_offset;
  uint64_t block_count, next_block;
  uint64_t module_base, module_end;
  uint3 cluster;              // the shape of a cluster in blocks
  uint32_t cooperative;       // whether the team is all blocks of a cooperative launch, not a cluster
  uint32_t partial_barriers;  // whether the module calls barriers that only part of a block takes part in
  uint32_t programmatic;      // whether the launch may start before the previous one has ended
  // Seed of the order of threads and of asynchronous work. 0: threads run in turn, and work completes as late as
  // possible.
  uint64_t seed;
  uint32_t spins;  // whether threads may wait for each other in spin loops, so that a spinning thread must yield
  // A sampled launch runs `sample_count` clusters (0: all), and a block at most `block_milliseconds` (0: no limit).
  uint32_t sample_count, block_milliseconds, padding;
  uint64_t samples[kMaxSamples];  // the positions of the sampled clusters
  uint32_t sample, unfinished;  // the number of the running sample, and one bit for each sample that was stopped early
  uint32_t undefined_line, undefined_fill;  // shuffles at this line return other undefined values; 0: no line
  Trace* trace;                             // null for an untraced launch
};

// Returns whether the running sample of a launch was stopped early, because the time of a block was over.
static inline bool was_stopped_early(const Launch* launch) {
  return launch->sample_count && launch->unfinished >> launch->sample & 1;
}

enum LaunchResult : int { kLaunchDone, kLaunchAbandoned, kLaunchWithoutThread };

struct Lane {
  uint32_t mask, kind;
  int32_t source_lane;
  uint64_t value, result;
  Site site;
};

struct AsyncCopy;
struct Events;

// The asynchronous copies of one thread that are in flight, and the number of its open copy group.
struct CopyQueue {
  AsyncCopy *oldest, *newest;
  uint32_t group;
};

struct Worker;

// The blocks that run concurrently: those of a cluster, all blocks of a cooperative launch, or a single block.
// clusters.hpp runs them.
constexpr uint32_t kMaxTeam = 256;
struct Team {
  uint32_t size;
  Worker* members[kMaxTeam];
  bool finished[kMaxTeam], dead;
  uint64_t progress, stuck_at;
  uint32_t cluster_arrived, cluster_generation;
  uint64_t first_position;
  bool unreleased[kMaxTeam];   // by block: a thread has arrived at the cluster barrier by a relaxed arrival
  uint32_t settled[kMaxTeam];  // by block: a barrier of all blocks has ordered its accesses before this moment
  // Exactly one member runs at any time: the holder.
  pthread_mutex_t mutex;
  pthread_cond_t turn[kMaxTeam];
  uint32_t holder;
  bool started[kMaxTeam];
};

struct Worker {
  Launch* launch;
  Trace* trace;
  uint32_t threads, warps, current, live_count, barrier_count;
  bool fibers;
  bool aborted;
  char* stacks;
  uint32_t stack_count;
  Context main_context, first_context, discarded;
  Context contexts[kMaxThreads];
  uint3 coordinates[kMaxThreads];
  Lane lanes[kMaxThreads];
  void* pointers[kMaxThreads];
  uint32_t live[kMaxWarps], started[kMaxWarps], at_barrier[kMaxWarps], at_warp[kMaxWarps], at_active[kMaxWarps];
  uint32_t halted[kMaxWarps];  // the lanes that are paused or parked
  uint32_t paused[kMaxWarps];  // lanes whose log in a traced launch is full
  uint32_t parked[kMaxWarps];  // lanes that wait for asynchronous work
  Site barrier_site[kMaxWarps];
  Site block_site;  // the position of the first thread at the barrier
  uint32_t barrier_kind;
  Site waiting_site[kMaxThreads];
  int reduction[3], reduction_result[3];
  CopyQueue copies[kMaxThreads];
  AsyncCopy* free_copies;
  uint32_t copies_in_flight;
  void* shared_owner;
  char* shared_base;
  size_t shared_bytes;
  char* dynamic_base;
  Events* events;             // null until a kernel has asynchronous work
  bool uses_wgmma;            // whether the block has used wgmma, so that accesses to its registers are checked
  bool uses_cluster_barrier;  // whether threads may use the barrier of the cluster
  Team* team;                 // null while no block runs
  pthread_t system_thread;    // the operating-system thread that executes the block
  uint32_t rank;              // the block's number in its team
  uint64_t random_state;      // state of the pseudo-random numbers
  uint64_t switches, switches_before;  // of stacks: now, and at the last timer tick (spins.hpp)
  uint64_t blocks_begun, ticking;      // the number of blocks begun, and the block whose ticks are counted
  uint32_t ticks;
  uint32_t flag_accesses;  // atomic and volatile accesses of an untraced launch, counted to yield every few of them
};

extern __thread Worker* opb_worker __attribute__((tls_model("initial-exec"), visibility("hidden")));

// The filter that each call from instrumented code tests first, because most calls need no work. Accesses in this range
// are ignored: all addresses in an untraced launch, the threads' own stacks in a traced one. Basic blocks are logged
// only if `counting` is set.
struct AccessFilter {
  uintptr_t start, bytes;
  Trace* counting;
};
extern __thread AccessFilter opb_access_filter __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline void set_access_filter(const Worker* worker) {
  if (!worker->trace) {
    opb_access_filter = {0, UINTPTR_MAX, nullptr};
    return;
  }
  opb_access_filter.start = (uintptr_t)worker->stacks;
  // An access that begins in the last bytes of the stacks may end beyond them.
  opb_access_filter.bytes = worker->uses_wgmma ? 0 : (size_t)worker->stack_count * kStackBytes - 16;
}

constexpr size_t kDynamicSharedBytes = 232 << 10;
constexpr size_t kSharedCanaryBytes = 1 << 10;

void report(Worker* worker, ReportKind kind, Site site, uint32_t other_line, const char* text);
void report_fault(Worker* worker, ReportKind kind, uint64_t program_counter, uint64_t address, const char* text);
void run_blocks(Worker* worker, Launch* launch);
void run_block(Worker* worker, uint64_t position);
bool prepare(Worker* worker, Launch* launch);
[[noreturn]] void abandon_launch(Worker* worker);
bool use_signal_stack();  // false if memory is short
void forget_copies(Worker* worker);

// Asynchronous work, defined in events.hpp, bulk.hpp and clusters.hpp.
bool begin_events(Worker* worker, uint64_t position);  // false if memory is short
void end_events(Worker* worker);
void thread_left(Worker* worker);
Team* make_team(Worker* leader);
void unblock(Worker* worker);  // called when no thread of the block can run: makes one runnable, or reports a deadlock
void run_cluster(Worker* worker, uint64_t first_position);
uint32_t cluster_size(const Launch* launch);
uint64_t block_at(const Launch* launch, uint64_t position);

// The scheduler's notifications to a traced launch, defined in instrument.hpp.
void trace_launch(Worker* worker);
void trace_progress(Worker* worker);  // a thread has ended, which may end another thread's spin loop
void trace_block_start(Worker* worker, uint64_t index, uint64_t position);
Trace* trace_of(const Worker* worker);  // the launch's trace, or the part of it for another block of the team
void trace_block_end(Worker* worker);
void trace_barrier(Worker* worker);
void trace_warp_operation(Worker* worker);
void trace_warp_sync(Worker* worker, uint32_t warp, uint32_t group);
// Called when a lane of the warp has stopped: replays the warp's logs once none of its lanes can run.
void trace_lane_stopped(Worker* worker, uint32_t warp);
// Returns whether an access goes to the shared memory of another block of the cluster, and records it there. Defined in
// async_shadow.hpp.
bool access_another_block(Worker* worker, uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site);

// Completion of warp operations, defined in warp.hpp.
bool release_active_lanes(Worker* worker, uint32_t warp);
bool release_warp(Worker* worker, uint32_t warp);
