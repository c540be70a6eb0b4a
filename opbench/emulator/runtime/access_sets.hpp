// Stores sets of mutually unordered accesses, so that a cell keeps every concurrent reader of a location.
#pragma once
#include "trace.hpp"

// Beyond these numbers of sets and of steps between sets (60 MB), an access is not added.
constexpr uint32_t kMaxAccessNodes = 1u << 19, kMaxAccessSteps = 1u << 20;

static void reset_access_sets(AccessSets* sets) {
  sets->nodes.clear();
  sets->nodes.add({0, 0, 0, 0});  // the empty set
  ++sets->generation;
  sets->step_count = 0;
  sets->last = {};
}

static AccessStep* access_step(const AccessSets* sets, uint32_t from, uint32_t who, uint32_t when, uint32_t site) {
  uint64_t key = (from * 0x9E3779B97F4A7C15u ^ who) * 0xD6E8FEB86659FD93u ^ ((uint64_t)when << 32 | site);
  uint32_t slot = (uint32_t)(key * 0x9E3779B97F4A7C15u >> 32), mask = sets->step_slots - 1;
  for (;; ++slot) {
    AccessStep* step = &sets->steps[slot & mask];
    if (step->generation != sets->generation) return step;
    if (step->from == from && step->who == who && step->when == when && step->site == site) return step;
  }
}

static void grow_access_steps(AccessSets* sets) {
  AccessStep* old = sets->steps;
  const uint32_t count = sets->step_slots, slots = count ? 2 * count : 1024;
  sets->steps = (AccessStep*)allocate_zeros(slots * sizeof(AccessStep));
  sets->step_slots = slots;
  for (uint32_t index = 0; index < count; ++index) {
    const AccessStep& step = old[index];
    if (step.generation == sets->generation) *access_step(sets, step.from, step.who, step.when, step.site) = step;
  }
  free(old);
}

// Returns the set with one access added; with `replaces_own`, in place of an earlier one by the same thread or block.
static __attribute__((noinline)) uint32_t add_access(AccessSets* sets, uint32_t from, uint32_t who, uint32_t when,
                                                     uint32_t site, bool replaces_own) {
  AccessStep* last = &sets->last;
  if (last->to && last->from == from && last->who == who && last->when == when && last->site == site) return last->to;
  if (2 * (sets->step_count + 1) > sets->step_slots) grow_access_steps(sets);
  AccessStep* step = access_step(sets, from, who, when, site);
  if (step->generation != sets->generation) {
    if (sets->step_count >= kMaxAccessSteps || sets->nodes.count >= kMaxAccessNodes) return from;
    uint32_t parent = from;
    if (replaces_own) {
      uint32_t at = from;
      while (at && sets->nodes[at].who != who) at = sets->nodes[at].parent;
      if (at) {  // rebuilds the set without the earlier access
        parent = sets->nodes[at].parent;
        List<AccessNode> kept = {};
        for (uint32_t node = from; node != at; node = sets->nodes[node].parent) kept.add(sets->nodes[node]);
        for (uint32_t index = kept.count; index-- > 0;) {
          parent = add_access(sets, parent, kept[index].who, kept[index].when, kept[index].site, false);
        }
        free(kept.items);
      }
    }
    uint32_t to = parent;
    if (parent != from) {
      to = add_access(sets, parent, who, when, site, false);
    } else {
      to = sets->nodes.count;
      sets->nodes.add({parent, who, when, site});
    }
    if (2 * (sets->step_count + 1) > sets->step_slots) grow_access_steps(sets);
    step = access_step(sets, from, who, when, site);
    *step = {sets->generation, from, who, when, site, to};
    ++sets->step_count;
  }
  *last = *step;
  return step->to;
}

static void free_access_sets(AccessSets* sets) {
  free(sets->nodes.items);
  free(sets->steps);
}
