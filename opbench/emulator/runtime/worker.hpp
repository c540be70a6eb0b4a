// The state of one operating-system thread that executes blocks, and of one launch.
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
constexpr size_t kStackBytes = 640 << 10;  // a GPU's 512 KiB of local memory, and room for our own calls
constexpr size_t kPageBytes = 4096;
constexpr uint32_t kNobody = ~0u;
constexpr uint32_t kMaxSamples = 16;

// What a report is about: kReportFault is 1, and so on. Kinds up to kReportArithmetic are of untraced launches too. From
// kReportStuck on they are of asynchronous work; texts name other places as @1a2b@. The first line of a text is the
// message, others are details. PlainRead: of a location that others update by atomic operations.
#define REPORT_KINDS(KIND)                                                                                 \
  KIND(Fault) KIND(StackOverflow) KIND(SharedOverrun) KIND(DivergentBarrier) KIND(WarpMask) KIND(Deadlock) \
  KIND(Trap) KIND(Arithmetic) KIND(GlobalBounds) KIND(SharedBounds) KIND(UninitialisedShared)              \
  KIND(UninitialisedGlobal) KIND(SharedRace) KIND(GlobalRace) KIND(Misaligned) KIND(UnfinishedCopy)        \
  KIND(Stuck) KIND(UnfinishedBulk) KIND(UnfinishedProduct) KIND(EarlyOverwrite) KIND(MissingFence)         \
  KIND(Mbarrier) KIND(ClusterExit) KIND(IllegalInstruction) KIND(BeyondShared) KIND(DifferentProducts)     \
  KIND(TouchedSums) KIND(MissingWait) KIND(ThreadRace) KIND(OutsideMask) KIND(Index) KIND(Overflow)        \
  KIND(Local) KIND(SameValue) KIND(PartialWarp) KIND(ConstantStore) KIND(PlainRead)
#define REPORT_KIND(NAME) kReport##NAME,
enum ReportKind : uint32_t { kReportNone, REPORT_KINDS(REPORT_KIND) };

// A place in the .cu, as the compiler wrote it into the call.
struct Site {
  const char* file;
  uint32_t line;
};

// Read by Python through ctypes: numbers.hpp lists the fields.
struct Report {
  uint32_t kind, line, other_line, count;
  uint64_t program_counter;  // relative to the module's base, 0 when outside it
  uint64_t address;
  uint64_t other_program_counter;  // the earlier access of a race
  uint64_t caller;                 // where the function that the place stands in was called, 0 when the compiler pasted it
  uint3 block, thread;
  uint3 other_block, other_thread;
  uint32_t bytes, access, other_access;
  uint32_t warp, other_warp;
  uint32_t instructions;   // 1 when the place is an instruction's, 2 when the other one is, and not an access of C++,
                           // 4 when both accesses are volatile, 8 when other_block counts and other_thread does not,
                           // 16 when the scope of one of them is too narrow, 32 when what the other one published
                           // has been seen without a fence, 64 when this thread has read a flag or lock
  uint32_t tag, shared_bytes;  // of the launch: its kernel and module, and the dynamic array's size
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
  uint3 cluster;  // blocks of a cluster
  uint32_t cooperative;  // whether these are all blocks of the launch, and no cluster
  uint32_t meets_in_parts;  // whether the module calls what some threads of a block do and others do not
  uint32_t programmatic;  // whether it may start before the launch ahead of it has ended
  uint64_t seed;  // of the order of threads and of asynchronous work; 0: threads in turn, work as late as may be
  uint32_t spins;  // whether threads may wait for each other in loops, so that one that goes on and on must give way
  uint32_t sample_count, block_milliseconds, padding;  // of a sample: how many positions, how long a block may take; 0: all, for ever
  uint64_t samples[kMaxSamples];              // positions of clusters, in their order
  uint32_t sample, cut_short;  // of the one that runs its number, and a bit for each that was not let come to its end
  uint32_t undefined_line, undefined_fill;  // shuffles at this line give other undefined values; 0: none does
  Trace* trace;  // null unless the module is a traced one
};

enum LaunchResult : int { kLaunchDone, kLaunchAbandoned, kLaunchWithoutThread };

struct Lane {
  uint32_t mask, kind;
  int32_t source_lane;
  uint64_t value, result;
  Site site;
};

struct AsyncCopy;
struct Events;

// A thread's asynchronous copies that have not landed, and the number of the group that collects them now.
struct CopyQueue {
  AsyncCopy *oldest, *newest;
  uint32_t group;
};

struct Worker;

// The blocks of a cluster: clusters.hpp. A block that is launched without one is a team of its own.
constexpr uint32_t kMaxTeam = 256;  // a cooperative launch is a team of all its blocks
struct Team {
  uint32_t size;
  Worker* members[kMaxTeam];
  bool finished[kMaxTeam], dead;
  uint64_t progress, stuck_at;
  uint32_t cluster_arrived, cluster_generation;
  uint64_t first_position;
  bool unreleased[kMaxTeam];   // of each block: a thread has arrived at the barrier of the cluster and released nothing
  uint32_t settled[kMaxTeam];  // of each block: what it did before this moment, a barrier of all blocks has ordered
  // Below: who runs. Exactly one member does.
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
  uint32_t halted[kMaxWarps];  // both of the next two
  uint32_t paused[kMaxWarps];  // lanes whose log of a traced launch is full
  uint32_t parked[kMaxWarps];  // lanes that wait for asynchronous work
  Site barrier_site[kMaxWarps];
  Site block_site;  // of the first thread at the barrier
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
  Events* events;  // null until a kernel has asynchronous work
  bool holds_registers;  // whether wgmma has been at work in the block
  bool may_meet;         // whether threads have been at the barrier of the cluster
  Team* team;      // the blocks of a cluster that is under way, else null
  uint32_t rank;   // of the block in it
  uint64_t lot;    // state of the lots that are drawn
  uint64_t switches, switches_before;  // of stacks, and when the clock ticked last: spins.hpp
  uint64_t blocks_begun, ticking;      // how many blocks, and which one the ticks are counted of
  uint32_t ticks;
  uint32_t looks;  // at atomic and volatile locations, untraced
};

extern __thread Worker* opb_worker __attribute__((tls_model("initial-exec"), visibility("hidden")));

// What the compiler's calls look at first, as most of them have nothing to tell: accesses between these addresses are
// nobody's business (all while nothing is traced, else a thread's own), and blocks are unless they are counted.
struct Glance {
  uintptr_t start, bytes;
  Trace* counting;
};
extern __thread Glance opb_glance __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline void set_glance(const Worker* worker) {
  if (!worker->trace) {
    opb_glance = {0, UINTPTR_MAX, nullptr};
    return;
  }
  opb_glance.start = (uintptr_t)worker->stacks;
  // What begins in the last bytes may end beyond them.
  opb_glance.bytes = worker->holds_registers ? 0 : (size_t)worker->stack_count * kStackBytes - 16;
}

constexpr size_t kDynamicSharedBytes = 232 << 10;
constexpr size_t kSharedCanaryBytes = 1 << 10;

void report(Worker* worker, ReportKind kind, Site site, uint32_t other_line, const char* text);
void report_fault(Worker* worker, ReportKind kind, uint64_t program_counter, uint64_t address, const char* text);
void run_blocks(Worker* worker, Launch* launch);
void run_block(Worker* worker, uint64_t position);
bool prepare(Worker* worker, Launch* launch);
[[noreturn]] void abandon_launch(Worker* worker);
bool use_signal_stack();  // false where memory is short
void forget_copies(Worker* worker);

// Asynchronous work: events.hpp, bulk.hpp and clusters.hpp have the bodies.
bool begin_events(Worker* worker, uint64_t position);  // false where memory is short
void end_events(Worker* worker);
void thread_left(Worker* worker);
Team* make_team(Worker* leader);
void unblock(Worker* worker);  // called when no thread of the block can run; it lets one, or reports a deadlock
void run_cluster(Worker* worker, uint64_t first_position);
uint32_t cluster_size(const Launch* launch);
uint64_t block_at(const Launch* launch, uint64_t position);

// What a traced launch wants to know of the scheduler's doings; trace.hpp has the bodies.
void trace_launch(Worker* worker);
void trace_progress(Worker* worker);  // a thread has ended: those that wait in loops may yet go on
void trace_block_start(Worker* worker, uint64_t index, uint64_t position);
Trace* trace_of(const Worker* worker);  // of the launch, or a part of it for another block of a cluster
void trace_block_end(Worker* worker);
void trace_barrier(Worker* worker);
void trace_warp_operation(Worker* worker);
void trace_warp_sync(Worker* worker, uint32_t warp, uint32_t group);
// Called when a lane of the warp has stopped: replays the warp's logs once none of its lanes can run on.
void trace_lane_stopped(Worker* worker, uint32_t warp);
// Whether an access goes to shared memory of another block of the cluster; a store there counts as written. async_shadow.hpp
// has the body.
bool access_another_block(Worker* worker, uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site);

// What the scheduler asks of a warp's operations; warp.hpp has the bodies.
bool release_active_lanes(Worker* worker, uint32_t warp);
bool release_warp(Worker* worker, uint32_t warp);
