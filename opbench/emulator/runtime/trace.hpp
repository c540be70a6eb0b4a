// What a traced launch remembers: where memory is, who touched it last, and what each lane did since the last replay.
#pragma once
#include <execinfo.h>
#include <stdlib.h>

#include "faults.hpp"
#include "list.hpp"
#include "scheduler.hpp"

// Every number that decides the size of a structure below.
constexpr uint32_t kLogLength = 1024;  // events of one lane between replays: a warp's log stays in the cache
constexpr uint64_t kGuardBytes = 64 << 10;  // the band around each buffer
constexpr uint32_t kMaxDepth = 24;     // calls deeper than this are told apart by their depth only
constexpr uint32_t kRecentRegions = 256;
constexpr uint32_t kCountSlots = 1 << 12;
constexpr uint32_t kSeenReports = 256;
constexpr uint32_t kWindows = 64;
constexpr uint32_t kBranches = 1 << 10;
constexpr uint32_t kMaxParts = kMaxTeam;

// Bulk: global memory that the copy engine reads or writes. Operand: shared memory that wgmma reads.
enum Space : uint32_t { kGlobal, kShared, kLocal, kModule, kBulk, kOperand };

// A control word: a position in the module and what happened there. Its order is the order of code.
enum EventKind : uint32_t { kEventBlock, kEventEnter, kEventExit, kEventLoad, kEventStore, kEventAtomic, kEventMeet };
constexpr uint32_t kEventBits = 3;
constexpr uint32_t kLastSite = (1u << (32 - kEventBits)) - 1;
static inline uint32_t event_kind(uint32_t control) { return control & ((1u << kEventBits) - 1); }

// The last accesses of one location of global memory by blocks. A moment is a part of a block between two fences; moments
// are numbered as they come and through all launches of a trace, so that an earlier launch's moments are smaller numbers.
struct GlobalCell {
  uint32_t writer, write_site;  // a moment, and a site packed with SiteFlags
  uint32_t reader, read_site;
  uint32_t readers;   // an access set: earlier plain reads that are not ordered before the last one
  uint32_t updaters;  // an access set: atomic updates by other blocks before the last one, not ordered before it
};

// The last accesses of one location by threads of one block, of shared memory or global. An interval lies between two barriers of a block; intervals are
// numbered through all blocks, so that another block's accesses are old ones.
struct SharedCell {
  uint32_t write_interval, write_site;
  uint32_t read_interval, read_site;
  uint32_t other_site;  // of the last reader but one, for a write by the last one itself
  uint32_t async_read;  // number of the last wgmma or bulk store that reads it
  uint32_t readers;     // an access set: reads of this interval that are not ordered before the last one
  uint16_t other_reader, other_clock;
  uint16_t updater, updater_clock;  // the last counting update but one, if it is not ordered before the last one
  uint16_t writer, write_clock, write_fences;
  uint16_t reader, read_clock;
};

// Written by Python through ctypes, as these three: numbers.hpp lists the fields. A variable of the module is an array of its own.
struct TraceBuffer {
  uint64_t start, bytes;
  uint32_t item_bytes, initialised;
};
struct SharedArray {
  uint64_t offset, bytes;
  uint64_t constant;  // whether it is a __constant__ variable
};
struct TraceTotals {
  uint64_t counted_blocks, barriers, accesses;
};

// A wgmma or bulk store that reads shared memory until its thread has waited for it.
struct AsyncRead {
  uint32_t site, thread;
  bool done;
};

// What is known of the threads of a block where some of them meet.
struct ClockRow {
  uint32_t interval;
  uint16_t at[kMaxThreads];
};

// The other side of a race.
struct Other {
  uint32_t site;
  uint3 block, thread;
  uint32_t warp, access, instructions;
};

struct GlobalMemory {
  uintptr_t start, end;
  bool initialised;
  bool followed;   // whether accesses are told apart by thread: not while nobody has written what was there at the start
  uint32_t shift;  // a cell covers 1 << shift bytes
  GlobalCell* cells;
  SharedCell* threads;  // as many: of the threads of one block
  bool constant;        // a __constant__ variable
};

constexpr uint32_t kPending = 64, kPendingBytes = 16;

// A store that raced, which may turn out to have left the bytes as they were.
struct Pending {
  ReportKind kind;
  uint32_t site, bytes, access, thread;
  uintptr_t address;
  uint32_t contested;  // a bit for each byte that the other access touches too
  unsigned char before[kPendingBytes];
  Other other;
};

// What a thread saw when it last looked at a location that others may change: volatile, or atomic.
struct Poll {
  uint32_t site;
  uintptr_t address, plain;
  uint64_t value;
};
constexpr uint32_t kPolls = 4;

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

// What one request of a warp costs.
struct Cost {
  int64_t sectors, wavefronts, ideal_wavefronts;
};

// And what one pattern of addresses cost; `lanes` is 0 where none is known.
struct KnownCost {
  uint32_t control, form, lanes;
  Cost cost;
  uint64_t addresses[kLanes];
};
constexpr uint32_t kKnownCosts = 64;

// The last of some requests that one wider instruction could make: neighbours within one aligned piece of memory.
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
  // Lanes that have gone together ever since all last met at a barrier or warp operation.
  uint32_t classes[kLanes];
  uint32_t class_count;
  WarpLog* next_free;
};

// Where a lane stands: the calls that it is in, the basic block that it went through last in each, and the step of its
// warp's replay that brought it here. Lanes of one step went through that block together.
struct CallStack {
  uint32_t depth, step;
  uint32_t sites[kMaxDepth];
  uint32_t blocks[kMaxDepth + 1];
  uint64_t hashes[kMaxDepth + 1];
};

// Written for Python: what warps did at the end of a basic block at which lanes parted. `next` is the block behind it.
struct Branch {
  uint32_t site, next;
  uint64_t executions, divergent, fewest_lanes;
};
// Of the basic block whose entry lies at one place of the module; parted lanes took ways of which the smaller had so many.
struct BlockCount {
  uint32_t executions, divergent;
  uint64_t fewest_lanes;
};

// Written for Python: traffic of one instruction. `upper` counts as if lanes that part never met again before the next
// barrier or warp operation.
struct Count {
  uint32_t site, event, space, bytes;
  uint64_t requests, lanes, sectors, ideal_sectors, wavefronts, ideal_wavefronts, collisions;
  uint64_t upper_requests, upper_sectors, upper_wavefronts;
  struct {
    int64_t requests, sectors, wavefronts, ideal_wavefronts;
  } saved[2];  // if a compiler merged neighbouring accesses to 8 and to 16 bytes
};

// What a block had made known when it stored to a location: all accesses of earlier intervals, and of this interval
// those whose clock is below that of their thread. Reads are looked at by moment, which is coarser.
struct Release {
  uint32_t block, moment, interval;
  uint16_t first, count;  // threads that `clocks` has
  bool within_cluster;    // by a fence or operation whose scope is the cluster
  uint16_t* clocks;
};
struct Acquired {
  uint32_t location, length;  // an index, as the table of locations grows
  bool within_cluster;
};

// A location that blocks synchronise through: who published its writes by a store or atomic operation, in order.
struct SyncLocation {
  uintptr_t address;
  List<Release> log;
  List<Acquired> links;
  ClockRow* told;  // what threads of the block have made known by it
};

// Sets of accesses are linked lists that share their tails; equal histories have one number, so that a comparison and a
// look into a table add a read to a cell. Number 0 is the empty set.
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

// The last access of another block of the cluster to a block's shared memory.
struct RemoteAccess {
  uint32_t moment, site, access;  // no moment: there was none
  uint3 block, thread;
};

// The flag or lock that a thread has last read by a volatile or atomic access, and in which block.
struct Guard {
  uintptr_t address;
  uint32_t block;
};

struct Trace {
  bool races, counting_wanted, counting;
  uint64_t max_blocks;
  TraceTotals totals;

  GlobalMemory* memories;
  uint32_t memory_count;
  Region* regions;
  uint32_t region_count;
  const Region* recent[kRecentRegions];
  SharedArray *arrays, *variables;
  uint32_t array_count, variable_count;
  GlobalMemory* variable_memories;  // one a variable

  Caches* caches;  // null unless a GPU's caches are modelled
  bool around_l1;    // of the next access
  bool is_volatile;  // of the one that is looked at
  uint32_t word, next_word;  // opb_access_word of the one that is looked at, and of the next one
  uint16_t write_clock_back;  // by how much an access that publishes is recorded before its time
  bool at_once;      // whether a store does not follow directly upon its being looked at
  bool in_range;     // whether more pieces of one store are looked at before it follows
  size_t range_written;  // of the access before, where that was such a store
  uint32_t pending_count;
  Pending pending[kPending];

  // Threads that wait in loops: what each saw last, and how often somebody saw the same since anything happened.
  Poll polls[kMaxThreads][kPolls];
  bool polling[kMaxThreads];
  uint32_t poll_site[kMaxThreads];
  uintptr_t plain;  // address of the last access
  uint32_t idle;

  bool unwaited;                // whether launches ahead may still run, for all that the block has waited for
  uint32_t first_block, block;  // numbers of the launch's first block and of the one that runs
  uint32_t next_block;          // of the next launch's first
  Trace* parts[kMaxParts];      // of the other blocks of a cluster: they count nothing
  Trace* whole;  // of the launch; the trace itself, if it is not a part
  uint32_t first_moment, moment;
  uint32_t next_moment;
  List<uint32_t> blocks_of_moments;  // from first_moment on
  AccessSets block_sets, thread_sets;
  uint32_t thread_sets_interval;
  bool threads_meet_in_parts;  // from the first time on that some threads of a block met and others did not
  List<SyncLocation> locations;
  uint32_t* location_slots;  // a hash table from an address to the location's number + 1
  uint32_t location_slot_count;
  List<Acquired> acquired;                               // by the whole block
  List<Acquired> own[kMaxThreads], seen_by[kMaxThreads];  // by a thread; seen by it, with no fence since
  List<uint32_t> viewers;  // threads for which one of these two holds something
  ClockRow* pending_rows[kMaxThreads];
  Guard guards[kMaxThreads];
  bool in_cluster;  // whether other blocks of a cluster may reach into this block's shared memory
  GlobalMemory cluster_memory;         // that memory, as blocks see it
  RemoteAccess remote[kMaxCluster];  // by rank

  SharedCell* shared_cells;
  size_t shared_cell_bytes;
  uint32_t shared_shift;
  uint32_t interval, block_interval;
  // What each thread knows of each: only the lanes of a warp of each other, until threads meet at part of a block.
  uint16_t clocks[kMaxThreads][kMaxThreads];
  bool clocks_used[kMaxWarps], clocks_wide;
  // Of each thread's last fence at each level: its clock after it, and the interval.
  uint16_t fence_clock[kLevels][kMaxThreads];
  uint32_t fence_interval[kLevels][kMaxThreads];
  uint32_t fenced_interval[kLevels];  // the last in which any thread of the block fenced
  Release published[kLevels];         // what the fences before the last barrier made known, to all threads
  // How often a thread has executed fence.proxy.async, and what it knew at the last.
  uint16_t proxy_fences[kMaxThreads];
  ClockRow* proxy_views[kMaxThreads];
  struct {
    AsyncRead* items;
    uint32_t count, capacity;
  } async_reads;

  WarpLog* logs[kMaxWarps];
  WarpLog* free_logs;
  uint32_t epoch;
  CallStack calls[kMaxThreads];

  uint32_t step;
  BlockCount* blocks;  // by site, of the launch's module
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

// Where the function that runs was called, if it is none that the compiler pasted into the kernel.
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
                         uint32_t access, const Other* other) {
  Trace* trace = worker->trace;
  uint64_t key = (uint64_t)kind << 32 | site;
  auto* slot = &trace->seen[(site * 31 + kind) % kSeenReports];
  if (slot->key == key) {
    ++slot->report->count;
    return;
  }
  uintptr_t offset = address - (uintptr_t)worker->shared_base;
  for (uint32_t rank = 0; offset >= worker->shared_bytes && rank < worker->team->size; ++rank) {  // of another block
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
    fresh.warp = worker->current / kLanes;
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
  // Code and constants come before the variables; what lies between those, and behind them, is nobody's.
  uintptr_t base = launch->module_base;
  bool plain = trace->variable_count == 0;
  add_region(trace, base, plain ? launch->module_end : base + trace->variables[0].offset, kModule, nullptr);
  for (uint32_t index = 0; index < trace->variable_count; ++index) {
    uintptr_t start = base + trace->variables[index].offset;
    GlobalMemory* memory = &trace->variable_memories[index];
    memory->start = start, memory->end = start + trace->variables[index].bytes;
    add_region(trace, start, memory->end, kModule, memory);
  }
  // A slot that holds nothing must still point at something to compare with.
  for (const Region*& slot : trace->recent) slot = &trace->regions[0];
}

// The region of an access that missed the short memory of regions; reports one that has none and returns null.
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
  // A gap after a variable, which elf.py made.
  bool harmless = address >= worker->launch->module_base && address < worker->launch->module_end;
  for (uint32_t index = 0; index < trace->memory_count; ++index) {
    const GlobalMemory* memory = &trace->memories[index];
    harmless |= address + kGuardBytes >= memory->start && address + bytes <= memory->end + kGuardBytes;
  }
  // Farther away lies somebody else's memory: stop before the access happens.
  if (!harmless) abandon_launch(worker);
  return nullptr;
}
