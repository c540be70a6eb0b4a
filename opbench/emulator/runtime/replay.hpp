// Merges the logs of the 32 lanes of a warp into the warp's requests, and counts them.
//
// Lanes run one after another on a CPU and together on a GPU. Each lane logs its basic blocks, calls and accesses. The
// replay advances the lanes with the lowest position in the code, so that lanes that diverge at a branch reconverge
// where the paths join. Positions compare by call stack first, so a function called on both sides of a branch has two
// positions.
#pragma once
#include "count.hpp"

// ---- writing the logs

static WarpLog* take_log(Trace* trace, uint32_t warp) {
  WarpLog* log = trace->free_logs;
  if (log) {
    trace->free_logs = log->next_free;
  } else {
    log = (WarpLog*)allocate_zeros(sizeof(WarpLog));
  }
  for (LaneLog& lane : log->lanes) lane.events = lane.events_read = lane.addresses = lane.addresses_read = 0;
  log->class_count = 1;
  log->classes[0] = ~0u;
  log->epoch = ++trace->epoch;
  return trace->logs[warp] = log;
}

static void return_log(Trace* trace, uint32_t warp) {
  WarpLog* log = trace->logs[warp];
  if (!log) return;
  log->next_free = trace->free_logs;
  trace->free_logs = log;
  trace->logs[warp] = nullptr;
}

static __attribute__((noinline)) void pause_lane(Worker* worker);

static inline LaneLog* own_log(Worker* worker, Trace* trace) {
  uint32_t warp = worker->current / kLanes;
  WarpLog* log = trace->logs[warp];
  if (__builtin_expect(!log, 0)) log = take_log(trace, warp);
  return &log->lanes[worker->current % kLanes];
}

static inline void log_event(Worker* worker, Trace* trace, uint32_t control) {
  LaneLog* log = own_log(worker, trace);
  log->control[log->events++] = control;
  if (__builtin_expect(log->events == kLogLength, 0)) pause_lane(worker);
}

static inline void log_access(Worker* worker, Trace* trace, uint32_t control, uint64_t packed) {
  LaneLog* log = own_log(worker, trace);
  log->address[log->addresses++] = packed;
  log->control[log->events++] = control;
  if (__builtin_expect(log->events == kLogLength, 0)) pause_lane(worker);
}

// ---- reading them

static inline bool is_access(uint32_t control) {
  return event_kind(control) >= kEventLoad && event_kind(control) <= kEventAtomic;
}

static void follow_call(CallStack* calls, uint32_t control) {
  if (event_kind(control) == kEventEnter) {
    uint32_t depth = calls->depth++;
    if (depth >= kMaxDepth) return;
    calls->sites[depth] = control >> kEventBits;
    calls->blocks[depth + 1] = 0;
    calls->hashes[depth + 1] = (calls->hashes[depth] + 1) * 0x9e3779b97f4a7c15ull + calls->sites[depth];
  } else if (calls->depth > 0) {
    --calls->depth;
  }
}

static inline uint32_t stored_depth(const CallStack* calls) {
  return calls->depth < kMaxDepth ? calls->depth : kMaxDepth;
}

static inline bool same_calls(const CallStack* left, const CallStack* right) {
  return left->depth == right->depth && left->hashes[stored_depth(left)] == right->hashes[stored_depth(right)];
}

// Returns whether a lane's next event comes before another's: the outermost call that differs decides.
static bool comes_before(const CallStack* left_calls, uint32_t left, const CallStack* right_calls, uint32_t right) {
  uint32_t left_depth = stored_depth(left_calls), right_depth = stored_depth(right_calls);
  for (uint32_t depth = 0; depth < left_depth || depth < right_depth; ++depth) {
    uint32_t left_site = depth < left_depth ? left_calls->sites[depth] : left >> kEventBits;
    uint32_t right_site = depth < right_depth ? right_calls->sites[depth] : right >> kEventBits;
    if (left_site != right_site) return left_site < right_site;
    if (depth >= left_depth || depth >= right_depth) return left_depth > right_depth;
  }
  return left < right;
}

struct Replay {
  Trace* trace;
  WarpLog* log;
  CallStack* calls;
};

static inline uint32_t next_event(const Replay* replay, uint32_t lane) {
  const LaneLog* log = &replay->log->lanes[lane];
  return log->control[log->events_read];
}

// Counts the accesses of some lanes, each `ahead` events after the read position of its log; one request per form of
// access.
static void count_accesses(Replay* replay, uint32_t control, uint32_t lanes, uint32_t ahead, Bounds bounds) {
  Request request;
  while (lanes) {
    uint32_t left_over = 0;
    request.count = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      uint32_t lane = __builtin_ctz(rest);
      const LaneLog* log = &replay->log->lanes[lane];
      uint64_t packed = log->address[log->addresses_read + ahead];
      if (request.count == 0) request.form = packed_form(packed);
      if (packed_form(packed) != request.form) {
        left_over |= 1u << lane;  // generic pointers of different lanes may address shared and global memory
        continue;
      }
      request.lanes[request.count] = lane;
      request.addresses[request.count++] = packed & kAddressMask;
    }
    count_request(replay->trace, replay->log, control, &request, bounds);
    lanes = left_over;
  }
}

static void replay_access(Replay* replay, uint32_t control, uint32_t lanes, uint32_t ahead) {
  const WarpLog* log = replay->log;
  if (log->class_count == 1) {
    count_accesses(replay, control, lanes, ahead, kBothBounds);
    return;
  }
  count_accesses(replay, control, lanes, ahead, kLowerBound);
  for (uint32_t index = 0; index < log->class_count; ++index) {
    count_accesses(replay, control, lanes & log->classes[index], ahead, kUpperBound);
  }
}

static inline void advance(Replay* replay, uint32_t lanes, uint32_t events, uint32_t addresses) {
  uint32_t step = ++replay->trace->step;
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    LaneLog* log = &replay->log->lanes[lane];
    log->events_read += events;
    log->addresses_read += addresses;
    replay->calls[lane].step = step;
  }
}

// Records that these lanes executed a basic block; the next event of each shows its direction at the end of the block.
static inline void enter_block(Replay* replay, uint32_t lanes, uint32_t site) {
  for (uint32_t rest = lanes; rest; rest &= rest - 1) {
    CallStack* calls = &replay->calls[__builtin_ctz(rest)];
    calls->blocks[stored_depth(calls)] = site;
  }
}

static inline void count_block(Trace* trace, uint32_t site) {
  if (site < trace->block_places) ++trace->blocks[site].executions;
}

// Counts the branch at which `together` diverge from lanes of the same step; lanes that diverge later are counted here,
// too.
static void count_divergence(Replay* replay, uint32_t alive, uint32_t together) {
  uint32_t leader = __builtin_ctz(together), step = replay->calls[leader].step, peers = 0;
  for (uint32_t rest = alive; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (replay->calls[lane].step == step) peers |= 1u << lane;
  }
  uint32_t staying = peers & ~together;
  if (!step || !staying) return;
  const CallStack* calls = &replay->calls[leader];
  uint32_t site = calls->blocks[stored_depth(calls)];
  if (!site || site >= replay->trace->block_places) return;
  uint32_t leaving = __builtin_popcount(peers & together), others = __builtin_popcount(staying);
  BlockCount* block = &replay->trace->blocks[site];
  ++block->divergent;
  block->fewest_lanes += leaving < others ? leaving : others;
  for (uint32_t rest = staying; rest; rest &= rest - 1) replay->calls[__builtin_ctz(rest)].step = 0;
}

static void merge_lane_classes(WarpLog* log) {
  log->class_count = 1;
  log->classes[0] = ~0u;
}

// Replays events that all these lanes have in common.
static void replay_together(Replay* replay, uint32_t lanes, uint32_t events) {
  const LaneLog* reference = &replay->log->lanes[__builtin_ctz(lanes)];
  const uint32_t* control = reference->control + reference->events_read;
  uint32_t accesses = 0, block = 0;
  for (uint32_t step = 0; step < events; ++step) {
    uint32_t kind = event_kind(control[step]);
    if (is_access(control[step])) {
      replay_access(replay, control[step], lanes, accesses++);
    } else if (kind == kEventBlock) {
      block = control[step] >> kEventBits;
      count_block(replay->trace, block);
    } else if (kind == kEventEnter || kind == kEventExit) {
      if (block) enter_block(replay, lanes, block);
      block = 0;
      for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        follow_call(&replay->calls[__builtin_ctz(rest)], control[step]);
      }
    } else if (kind == kEventSync) {
      merge_lane_classes(replay->log);
    }
  }
  if (block) enter_block(replay, lanes, block);
  advance(replay, lanes, events, accesses);
}

static uint32_t lanes_with_events(const WarpLog* log) {
  uint32_t unread = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (log->lanes[lane].events_read < log->lanes[lane].events) unread |= 1u << lane;
  }
  return unread;
}

// Returns the number of next events that all these lanes have in common.
static uint32_t common_events(const Replay* replay, uint32_t lanes) {
  uint32_t first = __builtin_ctz(lanes);
  const LaneLog* reference = &replay->log->lanes[first];
  const uint32_t* expected = reference->control + reference->events_read;
  uint32_t common = reference->events - reference->events_read;
  for (uint32_t rest = lanes & (lanes - 1); rest && common; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    const LaneLog* other = &replay->log->lanes[lane];
    if (!same_calls(&replay->calls[first], &replay->calls[lane])) return 0;
    const uint32_t* control = other->control + other->events_read;
    uint32_t limit = other->events - other->events_read, index = 0;
    if (limit < common) common = limit;
    if (memcmp(control, expected, common * sizeof *control) == 0) continue;
    while (control[index] == expected[index]) ++index;
    common = index;
  }
  return common;
}

// Splits a class of lanes that diverge here.
static void split_classes(WarpLog* log, uint32_t alive, uint32_t together) {
  for (uint32_t index = 0, count = log->class_count; index < count; ++index) {
    uint32_t moving = log->classes[index] & together, staying = log->classes[index] & alive & ~together;
    if (!moving || !staying) continue;
    log->classes[index] &= ~moving;
    log->classes[log->class_count++] = moving;
  }
}

// Replays one step of lanes that are at different positions.
static void replay_first_lanes(Replay* replay, uint32_t alive) {
  uint32_t best = kNobody, together = 0, meeting = 0;
  for (uint32_t rest = alive; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest), control = next_event(replay, lane);
    if (event_kind(control) == kEventSync) {
      meeting |= 1u << lane;
      continue;
    }
    const CallStack* calls = &replay->calls[lane];
    if (best != kNobody && control == next_event(replay, best) && same_calls(calls, &replay->calls[best])) {
      together |= 1u << lane;
    } else if (best == kNobody || comes_before(calls, control, &replay->calls[best], next_event(replay, best))) {
      best = lane;
      together = 1u << lane;
    }
  }
  if (best == kNobody) {
    merge_lane_classes(replay->log);
    advance(replay, meeting, 1, 0);
    return;
  }
  split_classes(replay->log, alive, together);
  count_divergence(replay, alive, together);
  replay_together(replay, together, 1);
}

// Replays a warp's logs until all are empty, or until the log of an unfinished lane (`open`) is.
static void replay_warp(Worker* worker, uint32_t warp, uint32_t open) {
  Trace* trace = worker->trace;
  WarpLog* log = trace->logs[warp];
  if (trace->caches) choose_stream(trace->caches, warp);
  Replay replay = {trace, log, &trace->calls[warp * kLanes]};
  for (;;) {
    uint32_t alive = lanes_with_events(log);
    if (!alive || open & ~alive) return;
    uint32_t common = common_events(&replay, alive);
    if (common) {
      replay_together(&replay, alive, common);
    } else {
      replay_first_lanes(&replay, alive);
    }
  }
}

static void grow_log(LaneLog* log) {
  uint32_t events = log->events - log->events_read, addresses = log->addresses - log->addresses_read;
  memmove(log->control, log->control + log->events_read, events * sizeof *log->control);
  memmove(log->address, log->address + log->addresses_read, addresses * sizeof *log->address);
  log->events = events;
  log->addresses = addresses;
  log->events_read = log->addresses_read = 0;
}

void trace_lane_stopped(Worker* worker, uint32_t warp) {
  Trace* trace = worker->trace;
  WarpLog* log = trace->logs[warp];
  if (!log) return;
  if (!worker->fibers) {
    replay_warp(worker, warp, 0);
    return_log(trace, warp);
    return;
  }
  if (runnable(worker, warp)) return;
  uint32_t paused = worker->paused[warp];
  if (!paused) {
    if (worker->at_warp[warp]) return;  // these lanes will continue in this log
    replay_warp(worker, warp, 0);
    return_log(trace, warp);
    return;
  }
  replay_warp(worker, warp, paused);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    LaneLog* own = &log->lanes[lane];
    if (own->events_read) grow_log(own);
    if (own->events < kLogLength) halt(worker, worker->paused, warp, 1u << lane, false);
  }
}

// Called when a log is full: the other lanes of the warp catch up, and the common part is replayed.
static void pause_lane(Worker* worker) {
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, warp = self / kLanes, bit = bit_of(self);
  halt(worker, worker->paused, warp, bit, true);
  trace_lane_stopped(worker, warp);
  if (worker->paused[warp] & bit) yield_to_next(worker);
}
