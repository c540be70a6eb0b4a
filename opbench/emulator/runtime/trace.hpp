// Defines the state of a traced launch: memory regions, shadow cells, vector clocks, logs of lanes, and counts.
//
// An access finds its region here (find_region), is checked for races against the cells of the location (shadow.hpp),
// and is logged for counting (replay.hpp). A race is found by happens-before: each thread has a vector clock
// (trace->clocks), and each cell keeps thread, clock and site of its last accesses. Between blocks, releases and
// acquires of synchronisation locations order accesses (ordering.hpp).
#pragma once
#include <execinfo.h>
#include <stdlib.h>

#include "faults.hpp"
#include "list.hpp"
#include "scheduler.hpp"

// The sizes of the structures below.
constexpr uint32_t kLogLength = 1024;       // events of one lane between replays: a warp's log stays in the cache
constexpr uint64_t kGuardBytes = 64 << 10;  // the guard bytes on each side of a buffer
constexpr uint32_t kMaxDepth = 24;          // deeper calls are distinguished by their depth only
constexpr uint32_t kRecentRegions = 256;
constexpr uint32_t kCountSlots = 1 << 12;
constexpr uint32_t kSeenReports = 256;
constexpr uint32_t kWindows = 64;
constexpr uint32_t kBranches = 1 << 10;
constexpr uint32_t kMaxParts = kMaxTeam;

// Bulk: global memory that the copy engine reads or writes. Operand: shared memory that wgmma reads.
enum Space : uint32_t { kGlobal, kShared, kLocal, kModule, kBulk, kOperand };

// A control word is a position in the module and the kind of event there. Control words sort by position.
enum EventKind : uint32_t { kEventBlock, kEventEnter, kEventExit, kEventLoad, kEventStore, kEventAtomic, kEventSync };
constexpr uint32_t kEventBits = 3;
constexpr uint32_t kLastSite = (1u << (32 - kEventBits)) - 1;
static inline uint32_t event_kind(uint32_t control) { return control & ((1u << kEventBits) - 1); }

// The shadow cell of global memory: the last accesses by blocks. A moment is the part of a block between two fences,
// the block's logical time. Moments are numbered in order through all launches of a trace, so earlier launches have
// smaller ones.
struct GlobalCell {
  uint32_t writer, write_site;  // moment, and site packed with SiteFlags; 0: none
  uint32_t reader, read_site;
  uint32_t readers;   // an access set: earlier plain reads that do not happen before the last one
  uint32_t updaters;  // an access set: earlier atomic updates by other blocks that do not happen before the last one
};

// The shadow cell of the threads of one block, for shared or global memory. An interval is the time between two
// barriers of a block. Intervals are numbered through all blocks, so another block's accesses belong to earlier
// intervals.
struct SharedCell {
  uint32_t write_interval, write_site;
  uint32_t read_interval, read_site;
  uint32_t other_site;  // of the second last reader, which a write by the last reader races with
  uint32_t async_read;  // number of the last wgmma or bulk store that reads the location
  uint32_t readers;     // an access set: reads of this interval that do not happen before the last one
  uint16_t other_reader, other_clock;
  uint16_t updater, updater_clock;  // the second last atomic addition, if it does not happen before the last one
  uint16_t writer, write_clock, write_fences;
  uint16_t reader, read_clock;
};

// Python writes the next three structures through ctypes; numbers.hpp lists the fields. SharedArray also describes
// module variables.
struct TraceBuffer {
  uint64_t start, bytes;
  uint32_t item_bytes, initialised;
};
struct SharedArray {
  uint64_t offset, bytes;
  uint64_t constant;  // whether the variable is __constant__
};
struct TraceTotals {
  uint64_t counted_blocks, barriers, accesses;
};

// A wgmma or bulk store, which reads shared memory until its thread has waited for its completion.
struct AsyncRead {
  uint32_t site, thread;
  bool done;
  // When the thread of a bulk store has waited for it: what another thread writes later must be ordered after that.
  uint32_t waited_interval;
  uint16_t waited_clock;
};

// A vector clock of the threads of a block, released at a partial barrier or by a flag; valid in one interval.
struct VectorClock {
  uint32_t interval;
  uint16_t at[kMaxThreads];
};

// The earlier access of a race, for the report.
struct OtherAccess {
  uint32_t site;
  uint3 block, thread;
  uint32_t warp, access, instructions;
};

struct GlobalMemory {
  uintptr_t start, end;
  bool initialised;
  bool tracks_threads;  // whether `threads` is used: reads by threads cannot race where no thread may write
  uint32_t shift;       // a cell covers 1 << shift bytes
  GlobalCell* cells;
  SharedCell* threads;  // one per cell: accesses by the threads of one block
  bool constant;        // whether this is a __constant__ variable
};

constexpr uint32_t kPendingStores = 64, kPendingBytes = 16;

// A store that raced. It is reported once it has happened, because a store of the value that is already there is a
// note.
struct PendingStore {
  ReportKind kind;
  uint32_t site, bytes, access, thread;
  uintptr_t address;
  uint32_t contested;  // one bit for each byte that the other access touches, too
  unsigned char before[kPendingBytes];
  OtherAccess other;
};

// The value that a thread read at its last volatile or atomic load of a location, to recognise spin loops.
struct Poll {
  uint32_t site, interval;
  uintptr_t address, plain;
  uint64_t value;
  uint16_t clock;
};
constexpr uint32_t kPolls = 4;

// The last atomic operation on a location, and the value before it.
struct AtomicUpdate {
  uintptr_t address;
  uint64_t before;
  uint32_t bytes;
};
constexpr uint32_t kAtomicUpdates = 256;

struct Region {
  uintptr_t start, end;
  Space space;
  GlobalMemory* memory;
};

struct alignas(64) LaneLog {
  uint32_t events, events_read, addresses, addresses_read;
  uint32_t control[kLogLength];
  uint64_t address[kLogLength];
};

// The cost of one request of a warp.
struct Cost {
  int64_t sectors, wavefronts, ideal_wavefronts;
};

// A cache entry: the cost of one pattern of addresses. `lanes` is 0 in an empty entry.
struct KnownCost {
  uint32_t control, form, lanes;
  Cost cost;
  uint64_t addresses[kLanes];
};
constexpr uint32_t kKnownCosts = 64;

// The last of several requests that one wider instruction could replace: neighbours within one aligned piece of memory.
struct Window {
  uint32_t epoch, kind, form, count, lanes;
  bool merged;
  Cost cost;
  uint64_t addresses[kLanes];
};

struct WarpLog {
  LaneLog lanes[kLanes];
  Window windows[2][kWindows];  // of 8 and of 16 bytes
  uint32_t epoch;
  // Groups of lanes that have not diverged since the last barrier or warp operation.
  uint32_t classes[kLanes];
  uint32_t class_count;
  WarpLog* next_free;
};

// The position of a lane in the replay: its call stack, the last basic block in each call, and the replay step that
// moved the lane here. Lanes with the same step executed that block together.
struct CallStack {
  uint32_t depth, step;
  uint32_t sites[kMaxDepth];
  uint32_t blocks[kMaxDepth + 1];
  uint64_t hashes[kMaxDepth + 1];
};

// Read by Python: the divergence of warps at the end of a basic block. `next` is the block that follows in the code.
struct Branch {
  uint32_t site, next;
  uint64_t executions, divergent, fewest_lanes;
};
// Counts of the basic block that begins at one position of the module. fewest_lanes adds up, over all divergences, the
// lanes on the smaller side.
struct BlockCount {
  uint32_t executions, divergent;
  uint64_t fewest_lanes;
};

// Read by Python: the traffic of one instruction. The `upper` counts assume that diverged lanes reconverge only at the
// next barrier or warp operation.
struct Count {
  uint32_t site, event, space, bytes;
  uint64_t requests, lanes, sectors, ideal_sectors, wavefronts, ideal_wavefronts, collisions;
  uint64_t upper_requests, upper_sectors, upper_wavefronts;
  struct {
    int64_t requests, sectors, wavefronts, ideal_wavefronts;
  } saved[2];  // the savings if a compiler merged neighbouring accesses to 8 and to 16 bytes
};

// A release: the accesses that happen before a store which publishes them. These are all accesses of earlier intervals,
// and those of this interval whose clock is below that of their thread. Reads are ordered by moment, which is coarser.
struct Release {
  uint32_t block, moment, interval;
  uint16_t first, count;  // the threads in `clocks`
  bool within_cluster;    // whether the scope of the fence or operation is the cluster
  bool within_block;      // whether the scope of the fence is the block: other blocks then acquire nothing
  uint16_t* clocks;
};
// The releases of one synchronisation location that a thread or block has acquired: the first `length` of its log.
struct Acquired {
  uint32_t location, length;  // `location` is an index, because the table of locations grows
  bool within_cluster;
};

// A store that releases: the clock of its thread, and how many steps before this clock the released accesses end.
struct ReleasingStore {
  uint32_t interval;
  uint16_t thread, clock, steps;
};
// A thread that has read what a releasing store wrote, and the number of its acquire fences before.
struct Observer {
  uint16_t thread, clock;
  uint32_t fences;
};

// A synchronisation location: the releases by stores and atomic operations to one address, in order.
struct SyncLocation {
  uintptr_t address;
  List<Release> log;
  List<Acquired> links;
  VectorClock* released_clock;  // what threads of the block have released through it
  ReleasingStore store;         // the last one by a thread of the block
  List<Observer> observers;     // threads of the block that have read what it stored
  ReleasingStore replaced;      // the store before, if it happens before the last one
};

// Sets of accesses are linked lists that share their tails. Equal histories have the same number, so adding a read to a
// cell takes one comparison and one table look-up. Number 0 is the empty set.
struct AccessNode {
  uint32_t parent, who, when, site;
};
struct AccessStep {
  uint32_t generation, from, who, when, site, to;
};
struct AccessSets {
  List<AccessNode> nodes;
  AccessStep* steps;  // a hash table
  uint32_t step_slots, step_count, generation;
  AccessStep last;
};

enum FenceLevel : uint32_t { kBlockLevel, kClusterLevel, kDeviceLevel, kLevels };

struct Caches;

constexpr uint32_t kMaxCluster = 16;

// The last access by another block of the cluster to a block's shared memory.
struct RemoteAccess {
  uint32_t moment, site, access;  // moment 0: no access
  uint3 block, thread;
};

// The flag or lock that a thread last read by a volatile or atomic access, and the block of the thread.
struct Guard {
  uintptr_t address;
  uint32_t block;
};

// A location that a thread has set by a compare-and-swap and not reset in this interval: perhaps a lock.
struct Lock {
  uintptr_t address;
  uint64_t free;  // the value before
  uint32_t interval;
  uint32_t fences;          // 0 without an acquire fence since, else the level of the widest one, plus 1
  bool writes_unfenced[2];  // whether the thread has stored before an acquire fence of any scope, of the device's scope
};

// A critical section that has ended: the thread gave the lock back that it had taken, and stored before an acquire
// fence. In another order of the sections, nothing would order this store after those of the section before.
struct UnfencedSection {
  uintptr_t address;
  uint64_t free;
  uint32_t block, interval;
  uint16_t thread;
};

struct Trace {
  bool races, counting_wanted, counting;
  TraceTotals totals;

  GlobalMemory* memories;
  uint32_t memory_count;
  Region* regions;
  uint32_t region_count;
  const Region* recent[kRecentRegions];
  SharedArray *arrays, *variables;
  uint32_t array_count, variable_count;
  GlobalMemory* variable_memories;  // one for each variable

  Caches* caches;  // null if no GPU's caches are modelled
  // Properties of the current access, set by the function that the shim or the compiler called.
  bool bypasses_l1;          // whether the next access bypasses L1
  bool is_volatile;          // whether the current access is volatile
  uint32_t word, next_word;  // opb_access_word of the current access and of the next one
  bool report_at_once;       // whether to report a racing store at once, because the store itself happens later
  bool in_wider_store;       // whether the current access is a piece of a store whose other pieces are checked before
                             // it happens
  size_t range_written;      // the bytes of the previous access if it was such a store
  uint32_t pending_count;
  PendingStore pending[kPendingStores];

  // Spin loops: the last values that each thread read, and how many reads in a row, by any thread, found no change.
  Poll polls[kMaxThreads][kPolls];
  bool polling[kMaxThreads];
  uint32_t poll_site[kMaxThreads];
  uintptr_t plain;  // the address of the last access
  uint32_t idle;
  AtomicUpdate updates[kAtomicUpdates];  // by address; a later update may replace one of another address

  bool previous_may_run;        // whether previous launches may still run, because the block has not waited for them
  uint32_t first_block, block;  // the numbers of the launch's first block and of the running one
  uint32_t next_block;          // the number of the next launch's first block
  Trace* parts[kMaxParts];      // the traces of the other blocks of a team, which count no traffic
  Trace* whole;                 // the launch's trace, of which this one may be a part
  uint32_t first_moment, moment;
  uint32_t next_moment;
  List<uint32_t> blocks_of_moments;  // from first_moment on
  AccessSets block_sets, thread_sets;
  uint32_t thread_sets_interval;
  bool partial_barriers;  // whether some threads of a block have synchronised without the others
  List<SyncLocation> locations;
  uint32_t* location_slots;  // a hash table from an address to the location's number + 1
  uint32_t location_slot_count;
  List<Acquired> acquired;  // by the whole block
  // Acquired by one thread; and read by one thread, which has not executed an acquire fence since.
  List<Acquired> acquired_by[kMaxThreads], unacquired_by[kMaxThreads];
  List<uint32_t> acquirers;  // the threads for which one of these two lists is not empty
  VectorClock* pending_clocks[kMaxThreads];
  uint32_t acquire_fences[kMaxThreads];  // how many each thread has executed
  Guard guards[kMaxThreads];
  Lock locks[kMaxThreads];
  bool locks_used;
  List<UnfencedSection> sections;
  bool in_cluster;                   // whether other blocks of a cluster may access this block's shared memory
  GlobalMemory cluster_memory;       // the shadow of that memory for accesses by blocks
  RemoteAccess remote[kMaxCluster];  // by rank

  SharedCell* shared_cells;
  size_t shared_cell_bytes;
  uint32_t shared_shift;
  uint32_t interval, block_interval;
  // The vector clock of each thread. Only the components of its own warp are used until clocks_wide is set by a partial
  // barrier of a block or a flag.
  uint16_t clocks[kMaxThreads][kMaxThreads];
  bool clocks_used[kMaxWarps], clocks_wide;
  // The last fence of each thread at each level: the thread's clock after the fence, and the interval.
  uint16_t fence_clock[kLevels][kMaxThreads];
  uint32_t fence_interval[kLevels][kMaxThreads];
  bool ends_in_block_fence[kMaxThreads];  // whether a thread's last fence or flag access is a fence of block scope
  bool releases_within_block;             // whether any location has a release whose scope is the block
  uint32_t fenced_interval[kLevels];      // the last interval in which any thread of the block executed a fence
  Release published[kLevels];  // what the fences before the last barrier released, for all threads to publish
  // How often a thread has executed fence.proxy.async, and its vector clock at the last time.
  uint16_t proxy_fences[kMaxThreads];
  VectorClock* proxy_views[kMaxThreads];
  struct {
    AsyncRead* items;
    uint32_t count, capacity;
  } async_reads;

  WarpLog* logs[kMaxWarps];
  WarpLog* free_logs;
  uint32_t epoch;
  CallStack calls[kMaxThreads];

  uint32_t step;
  BlockCount* blocks;  // by site in the launch's module
  uint32_t block_places;

  KnownCost known_costs[kKnownCosts];
  Count counts[kCountSlots];
  uint32_t count_total;

  struct {
    uint64_t key;
    Report* report;
  } seen[kSeenReports];
};

// ---- reports: once per kind and instruction, however often it happens

// Returns the position of the call of the current function; 0 if the function is the kernel or inlined into it.
static uint64_t caller_of(const Worker* worker) {
  void* frames[24];
  const Launch* launch = worker->launch;
  int count = backtrace(frames, 24), inside = 0;
  for (int index = 0; index < count; ++index) {
    uintptr_t place = (uintptr_t)frames[index];
    if (place < launch->module_base || place >= launch->module_end) continue;
    if (++inside == 2) return place - launch->module_base;
  }
  return 0;
}

static void trace_report(Worker* worker, ReportKind kind, uint32_t site, uintptr_t address, uint32_t bytes,
                         uint32_t access, const OtherAccess* other) {
  Trace* trace = worker->trace;
  uint64_t key = (uint64_t)kind << 32 | site;
  auto* slot = &trace->seen[(site * 31 + kind) % kSeenReports];
  const uint32_t warp = worker->current / kLanes;
  const bool between_warps = other && is_between_warps(kind, warp, other->warp);
  if (slot->key == key && (!between_warps || is_between_warps(slot->report))) {
    ++slot->report->count;
    return;
  }
  uintptr_t offset = address - (uintptr_t)worker->shared_base;
  // The address may lie in the shared memory of another block.
  for (uint32_t rank = 0; offset >= worker->shared_bytes && rank < worker->team->size; ++rank) {
    const Worker* member = worker->team->members[rank];
    if (member && member->shared_owner == worker->shared_owner) offset = address - (uintptr_t)member->shared_base;
  }
  bool shared = offset < worker->shared_bytes;
  uint64_t base = worker->launch->module_base;
  bool variable = address >= base && address < worker->launch->module_end;
  Report fresh = blank_report(worker, kind, shared ? "shared" : variable ? "module" : "");
  fresh.program_counter = site;
  fresh.address = shared ? offset : variable ? address - base : address;
  fresh.bytes = bytes;
  fresh.access = access;
  if (other) {
    fresh.other_program_counter = other->site;
    fresh.other_block = other->block;
    fresh.other_thread = other->thread;
    fresh.other_access = other->access;
    fresh.warp = warp;
    fresh.other_warp = other->warp;
    fresh.instructions = other->instructions;
  }
  fresh.caller = caller_of(worker);
  Report* kept = add_report(&fresh);
  if (kept) *slot = {key, kept};
}

// ---- regions

static bool add_region(Trace* trace, uintptr_t start, uintptr_t end, Space space, GlobalMemory* memory) {
  if (end <= start) return false;
  uint32_t place = trace->region_count++;
  for (; place > 0 && trace->regions[place - 1].start > start; --place) {
    trace->regions[place] = trace->regions[place - 1];
  }
  trace->regions[place] = {start, end, space, memory};
  return true;
}

static void map_regions(Worker* worker, Trace* trace) {
  const Launch* launch = worker->launch;
  free(trace->regions);
  uint32_t most = trace->memory_count + trace->array_count + trace->variable_count + 8;
  trace->regions = (Region*)allocate_zeros(most * sizeof(Region));
  trace->region_count = 0;
  if (!trace->regions) return;
  for (uint32_t index = 0; index < trace->memory_count; ++index) {
    GlobalMemory* memory = &trace->memories[index];
    add_region(trace, memory->start, memory->end, kGlobal, memory);
  }
  uintptr_t shared = (uintptr_t)worker->shared_base, dynamic = (uintptr_t)worker->dynamic_base;
  for (uint32_t index = 0; index < trace->array_count; ++index) {
    uintptr_t start = shared + trace->arrays[index].offset;
    add_region(trace, start, start + trace->arrays[index].bytes, kShared, nullptr);
  }
  add_region(trace, dynamic, dynamic + launch->shared_bytes, kShared, nullptr);
  uintptr_t stacks = (uintptr_t)worker->stacks;
  add_region(trace, stacks, stacks + (size_t)worker->stack_count * kStackBytes, kLocal, nullptr);
  // Code and constants come before the variables. The gaps between and after the variables belong to no region.
  uintptr_t base = launch->module_base;
  bool plain = trace->variable_count == 0;
  add_region(trace, base, plain ? launch->module_end : base + trace->variables[0].offset, kModule, nullptr);
  for (uint32_t index = 0; index < trace->variable_count; ++index) {
    uintptr_t start = base + trace->variables[index].offset;
    GlobalMemory* memory = &trace->variable_memories[index];
    memory->start = start, memory->end = start + trace->variables[index].bytes;
    add_region(trace, start, memory->end, kModule, memory);
  }
  // An empty slot must still point to a region to compare with.
  for (const Region*& slot : trace->recent) slot = &trace->regions[0];
}

// Finds the region of an access that missed the cache of recent regions; reports an access outside of all and returns
// null.
static __attribute__((noinline)) const Region* find_region(Worker* worker, uintptr_t address, uint32_t bytes,
                                                           uint32_t access, uint32_t site) {
  Trace* trace = worker->trace;
  uint32_t low = 0, high = trace->region_count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (trace->regions[middle].start <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Region* region = low ? &trace->regions[low - 1] : nullptr;
  if (region && address + bytes <= region->end) return trace->recent[site % kRecentRegions] = region;
  if (access_another_block(worker, address, bytes, access, site)) return nullptr;
  if (address - (uintptr_t)worker->shared_base < worker->shared_bytes) {
    trace_report(worker, kReportSharedBounds, site, address, bytes, access, nullptr);
    return nullptr;
  }
  trace_report(worker, kReportGlobalBounds, site, address, bytes, access, nullptr);
  // The address may lie in a gap after a variable, which elf.py made.
  bool harmless = address >= worker->launch->module_base && address < worker->launch->module_end;
  for (uint32_t index = 0; index < trace->memory_count; ++index) {
    const GlobalMemory* memory = &trace->memories[index];
    harmless |= address + kGuardBytes >= memory->start && address + bytes <= memory->end + kGuardBytes;
  }
  // Farther away lies other memory of the process: stop before the access happens.
  if (!harmless) abandon_launch(worker);
  return nullptr;
}
