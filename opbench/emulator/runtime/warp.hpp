// Implements warp operations: the lanes of a mask wait for each other, and the last one to arrive computes all results.
#pragma once
#include <stdio.h>

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

static const char* operation_name(uint32_t kind) {
  static const char* const shuffles[] = {"shfl() of a group", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                         "__shfl_xor_sync"};
  static const char* const votes[] = {"__ballot_sync", "", "", "", "", "__any_sync", "__all_sync"};
  static const char* const others[] = {"__syncwarp",
                                       "",
                                       "",
                                       "__match_any_sync",
                                       "__match_all_sync",
                                       "__reduce_add_sync",
                                       "__reduce_min_sync",
                                       "__reduce_max_sync",
                                       "__reduce_min_sync",
                                       "__reduce_max_sync",
                                       "__reduce_and_sync",
                                       "__reduce_or_sync",
                                       "__reduce_xor_sync",
                                       "__activemask",
                                       "an instruction of the whole warp"};
  const uint32_t form = kind >> 8;
  if ((kind & kFormless) == OPB_WARP_SHUFFLE) return shuffles[form % 5];
  if ((kind & kFormless) == OPB_WARP_BALLOT) return votes[form % 7];
  return others[(kind & kFormless) % 15];
}

struct LanesText {
  char text[160];
};

// Returns a mask of lanes as text, such as "lane 5" or "lanes 0-7, 16-31".
static LanesText lanes_text(uint32_t lanes) {
  LanesText made;
  size_t used = (size_t)snprintf(made.text, sizeof made.text, "lane%s ", __builtin_popcount(lanes) == 1 ? "" : "s");
  const char* comma = "";
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    uint32_t end = lane;
    while (end + 1 < kLanes && lanes >> (end + 1) & 1) ++end;
    if (used < sizeof made.text) {
      const char* form = end == lane ? "%s%u" : "%s%u-%u";
      used += (size_t)snprintf(made.text + used, sizeof made.text - used, form, comma, lane, end);
    }
    comma = ", ";
    lane = end;
  }
  return made;
}

// Returns the result of a shuffle from a lane that does not take part: NaN, a large or a very small number in any type,
// so that its use shows in a sum, a maximum or a minimum.
static inline uint64_t undefined_value(const Worker* worker, uint32_t lane, uint32_t line) {
  constexpr uint64_t values[] = {0x7fff7fff7fff7fff, 0x7f7f7f7f7f7f7f7f, 0xff7fff7fff7fff7f};
  const Launch* launch = worker->launch;
  const uint32_t fill = launch->undefined_line == line ? launch->undefined_fill : 0;
  return values[(lane + opb_current.block.x + fill) % 3];
}

static void compute_results(const Worker* worker, Lane* lanes, uint32_t group, uint32_t kind) {
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
      own->result = defined ? lanes[own->source_lane].value : undefined_value(worker, lane, own->site.line);
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

// Reports a matrix instruction that not all threads of the warp execute: PTX ISA leaves ldmatrix, stmatrix, mma and
// wmma undefined then.
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

static void report_mask(Worker* worker, ReportKind kind, uint32_t thread, uint32_t other_line, const char* text) {
  const uint32_t self = worker->current;
  const Site site = worker->lanes[thread].site;
  set_current(worker, thread);
  report(worker, kind, site, other_line, text);
  set_current(worker, self);
}

// Reports lanes of one mask that execute different operations, with the lanes that execute the other one.
static void report_mixed(Worker* worker, uint32_t warp, uint32_t group, uint32_t other) {
  const Lane* lanes = &worker->lanes[warp * kLanes];
  const uint32_t first = __builtin_ctz(group);
  uint32_t as_first = 0;
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    if (lanes[__builtin_ctz(rest)].kind == lanes[first].kind) as_first |= 1u << __builtin_ctz(rest);
  }
  char text[400];
  snprintf(text, sizeof text, "lanes of the mask 0x%08x execute different warp operations: %s in %s, %s in lane %u",
           lanes[first].mask, operation_name(lanes[first].kind), lanes_text(as_first).text,
           operation_name(lanes[other].kind), other);
  report_mask(worker, kReportWarpMask, warp * kLanes + first, lanes[other].site.line, text);
}

// Reports a shuffle from a lane without a value: the lane has exited, is not in the mask, or does not exist.
static bool check_source(Worker* worker, uint32_t warp, uint32_t lane, uint32_t present) {
  const Lane& own = worker->lanes[warp * kLanes + lane];
  const uint32_t exited = present & own.mask & ~worker->live[warp], source = own.source_lane;
  const char* name = operation_name(own.kind);
  ReportKind kind = kReportOutsideMask;
  char text[400];
  if (exited >> source & 1) {
    kind = kReportWarpMask;
    snprintf(text, sizeof text, "%s with mask 0x%08x: lane %u reads lane %u; %s exited without executing it", name,
             own.mask, lane, source, lanes_text(exited).text);
  } else if (!(own.mask >> source & 1)) {
    snprintf(text, sizeof text, "%s with mask 0x%08x: lane %u reads lane %u, which the mask does not name", name,
             own.mask, lane, source);
  } else if (!(present >> source & 1)) {
    snprintf(
        text, sizeof text,
        "%s with mask 0x%08x: lane %u reads lane %u, which the block does not have; missing: %s, as its last warp has "
        "%d threads",
        name, own.mask, lane, source, lanes_text(own.mask & ~present).text, __builtin_popcount(present));
  } else {
    return true;
  }
  report_mask(worker, kind, warp * kLanes + lane, 0, text);
  return false;
}

// Reports lanes of the mask that wait elsewhere, and reads from exited lanes. The mask itself may name exited lanes.
static void check_group(Worker* worker, uint32_t warp, uint32_t group, uint32_t present) {
  const Lane* lanes = &worker->lanes[warp * kLanes];
  const uint32_t leader = __builtin_ctz(group);
  const Lane* first = &lanes[leader];
  if (first->kind == OPB_WARP_MATRIX) require_whole_warp(worker, warp, group, present);
  if (const uint32_t waiting = first->mask & worker->at_barrier[warp]) {
    char text[400];
    snprintf(text, sizeof text, "%s with mask 0x%08x: missing are %s, which wait at a block barrier",
             operation_name(first->kind), first->mask, lanes_text(waiting).text);
    report_mask(worker, kReportWarpMask, warp * kLanes + leader, 0, text);
  }
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    const uint32_t lane = __builtin_ctz(rest);
    if (lanes[lane].kind != first->kind) return report_mixed(worker, warp, group, lane);
    const bool shuffles = (lanes[lane].kind & kFormless) == OPB_WARP_SHUFFLE;
    if (shuffles && !check_source(worker, warp, lane, present)) return;
  }
}

// Completes every group of lanes that waits with the same mask and is complete; returns whether there was one.
bool release_warp(Worker* worker, uint32_t warp) {
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
    compute_results(worker, lanes, group, kind);
    // Shuffles and votes synchronise lanes, but only __syncwarp() orders their memory accesses.
    if (worker->trace && kind == OPB_WARP_SYNC) trace_warp_sync(worker, warp, group);
    worker->at_warp[warp] &= ~group;
    released = true;
  }
  return released;
}

// __activemask(): once no lane of the warp can run, the lanes that wait at the same line are the active ones.
bool release_active_lanes(Worker* worker, uint32_t warp) {
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
    char text[200];
    snprintf(text, sizeof text, "%s: the mask 0x%08x lacks the calling lane, which is %u", operation_name(kind), mask,
             self % kLanes);
    report(worker, kReportWarpMask, site, 0, text);
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
