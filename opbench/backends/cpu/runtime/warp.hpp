// Warp operations: the lanes of one mask wait for each other, and the last one to arrive computes everybody's result.
#pragma once
#include "scheduler.hpp"

static inline uint64_t combine(uint32_t kind, uint64_t left, uint64_t right) {
  switch (kind) {
    case OPB_WARP_ADD:
      return (uint32_t)(left + right);
    case OPB_WARP_MIN_SIGNED:
      return (int32_t)right < (int32_t)left ? right : left;
    case OPB_WARP_MAX_SIGNED:
      return (int32_t)right > (int32_t)left ? right : left;
    case OPB_WARP_MIN_UNSIGNED:
      return right < left ? right : left;
    case OPB_WARP_MAX_UNSIGNED:
      return right > left ? right : left;
    case OPB_WARP_AND:
      return left & right;
    case OPB_WARP_OR:
      return left | right;
    default:
      return left ^ right;
  }
}

static inline uint32_t lanes_with_value(const Lane* lanes, uint32_t group, uint64_t value) {
  uint32_t same = 0;
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (lanes[lane].value == value) same |= 1u << lane;
  }
  return same;
}

constexpr uint32_t kFormless = 0xff;

// What a shuffle gives that reads from a lane which does not take part: NaN, a large or a very small number in any type,
// so that a use shows in the result, be it in a sum, a maximum or a minimum.
static inline uint64_t undefined_value(uint32_t lane) {
  constexpr uint64_t values[] = {0x7fff7fff7fff7fff, 0x7f7f7f7f7f7f7f7f, 0xff7fff7fff7fff7f};
  return values[(lane + opb_current.block.x) % 3];
}

static void compute_results(Lane* lanes, uint32_t group, uint32_t kind) {
  kind &= kFormless;
  if (kind == OPB_WARP_SYNC || kind == OPB_WARP_MATRIX) return;
  uint32_t first = __builtin_ctz(group), ballot = 0;
  uint64_t combined = lanes[first].value;
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (lanes[lane].value) ballot |= 1u << lane;
    if (kind >= OPB_WARP_ADD && lane != first) combined = combine(kind, combined, lanes[lane].value);
  }
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    Lane* own = &lanes[lane];
    if (kind == OPB_WARP_SHUFFLE) {
      bool defined = own->mask & group & 1u << own->source_lane;
      own->result = defined ? lanes[own->source_lane].value : undefined_value(lane);
    } else if (kind == OPB_WARP_BALLOT) {
      own->result = ballot;
    } else if (kind == OPB_WARP_MATCH_ANY) {
      own->result = lanes_with_value(lanes, group, own->value);
    } else if (kind == OPB_WARP_MATCH_ALL) {
      own->result = lanes_with_value(lanes, group, own->value) == group ? group : 0;
    } else {
      own->result = combined;
    }
  }
}

// PTX ISA: ldmatrix, stmatrix, mma and wmma are undefined unless all threads of the warp execute them and none has exited.
static void require_whole_warp(Worker* worker, uint32_t warp, uint32_t group, uint32_t present) {
  if (group == ~0u) return;
  char text[160];
  const char* whole = "a whole warp has to execute this instruction";
  uint32_t exited = present & ~worker->live[warp];
  if (present != ~0u) {
    snprintf(text, sizeof text, "%s; the block has %u threads, no multiple of 32", whole, worker->threads);
  } else if (exited) {
    snprintf(text, sizeof text, "%s; %d lanes of the warp have exited", whole, __builtin_popcount(exited));
  } else {
    snprintf(text, sizeof text, "%s; %d lanes of the warp wait at a block barrier", whole, __builtin_popcount(~group));
  }
  uint32_t first = warp * kLanes + __builtin_ctz(group);
  set_current(worker, first);
  report(worker, kReportPartialWarp, worker->lanes[first].site, 0, text);
  abandon_launch(worker);
}

// Exited lanes may be named in a mask; lanes that wait elsewhere may not, and nobody may read a lane that has exited.
static void check_group(Worker* worker, uint32_t warp, uint32_t group, uint32_t present) {
  const Lane* lanes = &worker->lanes[warp * kLanes];
  const Lane* first = &lanes[__builtin_ctz(group)];
  if (first->kind == OPB_WARP_MATRIX) require_whole_warp(worker, warp, group, present);
  if (first->mask & worker->at_barrier[warp]) {
    report(worker, kReportWarpMask, first->site, 0, "the mask names a lane that waits at a block barrier");
  }
  uint32_t exited = present & first->mask & ~worker->live[warp];
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    const Lane* other = &lanes[__builtin_ctz(rest)];
    if (other->kind != first->kind) {
      report(worker, kReportWarpMask, first->site, other->site.line,
             "lanes of one mask execute different warp operations");
      return;
    }
    if ((other->kind & kFormless) != OPB_WARP_SHUFFLE) continue;
    if (exited >> other->source_lane & 1) {
      report(worker, kReportWarpMask, other->site, 0, "the shuffle reads a lane that has exited");
      return;
    }
    if (!(other->mask >> other->source_lane & 1)) {
      report(worker, kReportOutsideMask, other->site, 0, "the shuffle reads a lane that its mask does not name");
      return;
    }
    if (!(present >> other->source_lane & 1)) {
      char text[120];
      snprintf(text, sizeof text, "the shuffle reads a lane that the block does not have: its last warp has %d threads",
               __builtin_popcount(present));
      report(worker, kReportOutsideMask, other->site, 0, text);
      return;
    }
  }
}

// Complete every group of lanes that waits with the same mask and lacks nobody; true when one was complete.
static bool release_warp(Worker* worker, uint32_t warp) {
  Lane* lanes = &worker->lanes[warp * kLanes];
  uint32_t candidates = worker->at_warp[warp] & ~worker->at_active[warp];
  uint32_t count = worker->threads - warp * kLanes;
  uint32_t present = count >= kLanes ? ~0u : (1u << count) - 1;
  bool released = false;
  while (candidates) {
    uint32_t mask = lanes[__builtin_ctz(candidates)].mask, group = 0;
    for (uint32_t rest = candidates; rest; rest &= rest - 1) {
      uint32_t lane = __builtin_ctz(rest);
      if (lanes[lane].mask == mask) group |= 1u << lane;
    }
    candidates &= ~group;
    uint32_t needed = mask & worker->live[warp] & ~worker->at_barrier[warp];
    if ((group & needed) != needed) continue;
    check_group(worker, warp, group, present);
    uint32_t kind = lanes[__builtin_ctz(group)].kind;
    compute_results(lanes, group, kind);
    // Shuffles and votes make lanes meet; only __syncwarp() orders their memory accesses.
    if (worker->trace && kind == OPB_WARP_SYNC) trace_warp_sync(worker, warp, group);
    worker->at_warp[warp] &= ~group;
    released = true;
  }
  return released;
}

// __activemask(): once no lane of the warp can run, those that wait at the same line are the active ones.
static bool release_active_lanes(Worker* worker, uint32_t warp) {
  Lane* lanes = &worker->lanes[warp * kLanes];
  uint32_t waiting = worker->at_active[warp];
  if (!waiting) return false;
  uint32_t line = lanes[__builtin_ctz(waiting)].site.line, group = 0;
  for (uint32_t rest = waiting; rest; rest &= rest - 1) {
    uint32_t lane = __builtin_ctz(rest);
    if (lanes[lane].site.line == line) group |= 1u << lane;
  }
  for (uint32_t rest = group; rest; rest &= rest - 1) lanes[__builtin_ctz(rest)].result = group;
  worker->at_active[warp] &= ~group;
  worker->at_warp[warp] &= ~group;
  return true;
}

static inline uint64_t warp_operation(Worker* worker, uint32_t mask, uint32_t kind, uint64_t value, int source_lane,
                                      Site site) {
  if (!worker->fibers) become_fibers(worker);
  uint32_t self = worker->current, warp = self / kLanes, bit = bit_of(self);
  if (!(mask & bit)) {
    report(worker, kReportWarpMask, site, 0, "the mask lacks the calling lane");
    mask |= bit;
  }
  worker->lanes[self] = Lane{mask, kind, source_lane, value, 0, site};
  worker->waiting_site[self] = site;
  if (worker->trace) trace_warp_operation(worker);
  worker->at_warp[warp] |= bit;
  if (kind == OPB_WARP_ACTIVE) {
    worker->at_active[warp] |= bit;
  } else {
    uint32_t needed = mask & worker->live[warp] & ~worker->at_barrier[warp];
    bool complete = (needed & ~worker->at_warp[warp]) == 0 && release_warp(worker, warp);
    if (complete && !(worker->at_warp[warp] & bit)) return worker->lanes[self].result;
  }
  if (worker->trace) trace_lane_stopped(worker, warp);
  yield_to_next(worker);
  return worker->lanes[self].result;
}

// A pointer of each lane of the warp; the table is valid until the warp's next operation.
static inline void* const* share_pointers(Worker* worker, void* pointer, Site site) {
  uint32_t self = worker->current;
  worker->pointers[self] = pointer;
  warp_operation(worker, ~0u, OPB_WARP_MATRIX, 0, 0, site);
  return &worker->pointers[self - self % kLanes];
}
