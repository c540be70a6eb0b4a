// Counts the cost of a warp's requests: 32-byte sectors in global memory, wavefronts over the 32 banks in shared
// memory.
#pragma once
#include "cache.hpp"
#include "trace.hpp"

constexpr uint64_t kAddressMask = (1ull << 48) - 1;

// Packs an address with size, space and whether the access bypasses L1 in the high bits, so that a log has one word per
// access.
static inline uint64_t pack_address(uintptr_t address, uint32_t bytes, Space space, bool bypasses_l1) {
  return (uint64_t)address | (uint64_t)bytes << 48 | (uint64_t)space << 56 | (uint64_t)bypasses_l1 << 60;
}
static inline uint32_t packed_form(uint64_t word) { return (uint32_t)(word >> 48); }
static inline uint32_t form_bytes(uint32_t form) { return form & 0xff; }
static inline Space form_space(uint32_t form) { return (Space)(form >> 8 & 15); }
static inline bool form_bypasses_l1(uint32_t form) { return form >> 12; }

// The addresses of one request, by active lane in ascending order.
struct Request {
  uint32_t lanes[kLanes];
  uint64_t addresses[kLanes];
  uint32_t count, form, bytes;
};

// Which counts a request adds to: those with reconvergence where paths join, or those without.
enum Bounds : uint32_t { kLowerBound = 1, kUpperBound = 2, kBothBounds = 3 };

static uint32_t distinct_sectors_sorted(uint64_t* sectors, uint32_t count) {
  for (uint32_t next = 1; next < count; ++next) {
    uint64_t value = sectors[next];
    uint32_t place = next;
    for (; place > 0 && sectors[place - 1] > value; --place) sectors[place] = sectors[place - 1];
    sectors[place] = value;
  }
  uint32_t distinct = count ? 1 : 0;
  for (uint32_t index = 1; index < count; ++index) distinct += sectors[index] != sectors[index - 1];
  return distinct;
}

static uint32_t count_sectors(const Request* request) {
  const uint64_t* addresses = request->addresses;
  uint32_t count = request->count, bytes = request->bytes;
  uint64_t irregular = 0, varying = 0;
  for (uint32_t index = 1; index < count; ++index) {
    irregular |= addresses[index] - addresses[index - 1] - bytes;
    varying |= addresses[index] ^ addresses[0];
  }
  uint64_t first = addresses[0] >> 5;
  if (!irregular) return (uint32_t)(((addresses[0] + (uint64_t)count * bytes - 1) >> 5) - first + 1);
  if (!varying) return (uint32_t)(((addresses[0] + bytes - 1) >> 5) - first + 1);
  uint64_t sectors[2 * kLanes];
  uint32_t found = 0;
  bool sorted = true;
  for (uint32_t index = 0; index < count; ++index) {
    uint64_t low = addresses[index] >> 5, high = (addresses[index] + bytes - 1) >> 5;
    if (found && low < sectors[found - 1]) sorted = false;
    if (!found || low != sectors[found - 1]) sectors[found++] = low;
    if (high != low) sectors[found++] = high;
  }
  return sorted ? found : distinct_sectors_sorted(sectors, found);
}

// Returns the largest number of distinct 4-byte words that a bank delivers to lanes first..last-1 of the request.
static uint32_t bank_depth(const Request* request, uint32_t first, uint32_t last) {
  uint64_t words[kLanes][4 * kLanes];
  uint8_t depth[kLanes] = {};
  uint32_t deepest = 0;
  for (uint32_t index = first; index < last; ++index) {
    uint64_t address = request->addresses[index], end = (address + request->bytes - 1) >> 2;
    for (uint64_t word = address >> 2; word <= end; ++word) {
      uint32_t bank = word % 32, place = 0;
      while (place < depth[bank] && words[bank][place] != word) ++place;
      if (place < depth[bank]) continue;
      words[bank][depth[bank]++] = word;
      if (depth[bank] > deepest) deepest = depth[bank];
    }
  }
  return deepest;
}

// Returns whether every lane of the range reads the same address as lane^distance.
static bool shares_with(const Request* request, uint32_t first, uint32_t last, uint32_t distance) {
  for (uint32_t index = first; index < last; ++index) {
    bool shared = false;
    for (uint32_t other = first; other < last && !shared; ++other) {
      shared = request->lanes[other] == (request->lanes[index] ^ distance) &&
               request->addresses[other] == request->addresses[index];
    }
    if (!shared) return false;
  }
  return true;
}

static uint32_t end_of_lanes(const Request* request, uint32_t from, uint32_t lane_limit) {
  while (from < request->count && request->lanes[from] < lane_limit) ++from;
  return from;
}

// Up to 128 bytes a wavefront: all lanes for 4 bytes each, half a warp for 8, a quarter for 16. A load of 8 or 16 bytes
// serves two neighbouring groups at once when each lane shares its address with a neighbour (measured on an H200).
static Cost count_wavefronts(const Request* request, bool is_load) {
  uint32_t count = request->count;
  bool narrow = request->bytes <= 4, contiguous = true, same = true;
  for (uint32_t index = 1; index < count; ++index) {
    contiguous &= request->addresses[index] - request->addresses[index - 1] == 4;
    same &= request->addresses[index] == request->addresses[0];
  }
  if (narrow && (same || (contiguous && request->bytes == 4))) return {0, 1, 1};
  uint32_t group = narrow ? 32 : request->bytes == 8 ? 16 : 8;
  Cost cost = {0, 0, 0};
  for (uint32_t first = 0, lane = 0; first < count;) {
    uint32_t next = end_of_lanes(request, first, lane + group);
    uint32_t after = end_of_lanes(request, next, lane + 2 * group);
    bool pair_starts = group < 32 && lane % (2 * group) == 0 && next > first && after > next;
    if (is_load && pair_starts && (shares_with(request, first, after, 1) || shares_with(request, first, after, 2))) {
      next = after;
      lane += group;
    }
    if (next > first) {
      cost.wavefronts += bank_depth(request, first, next);
      ++cost.ideal_wavefronts;
    }
    lane += group;
    first = next;
  }
  return cost;
}

static uint32_t count_collisions(const Request* request) {
  uint32_t collisions = 0;
  for (uint32_t index = 1; index < request->count; ++index) {
    for (uint32_t other = 0; other < index; ++other) {
      if (request->addresses[other] != request->addresses[index]) continue;
      ++collisions;
      break;
    }
  }
  return collisions;
}

static Count* count_of(Trace* trace, uint32_t control, uint32_t form) {
  uint32_t hash = (control ^ form * 0x9e3779b1u) * 0x85ebca6bu >> 16;
  for (uint32_t probe = 0; probe < kCountSlots; ++probe) {
    Count* slot = &trace->counts[(hash + probe) % kCountSlots];
    if (!slot->requests && !slot->bytes) {
      // In a full table, every look-up would walk through the whole table.
      if (trace->count_total >= kCountSlots * 3 / 4) return nullptr;
      ++trace->count_total;
      slot->site = control >> kEventBits;
      slot->event = event_kind(control);
      slot->space = form_space(form);
      slot->bytes = form_bytes(form);
      return slot;
    }
    bool same = slot->site == control >> kEventBits && slot->event == event_kind(control) &&
                slot->space == (uint32_t)form_space(form) && slot->bytes == form_bytes(form);
    if (same) return slot;
  }
  return nullptr;
}

static Cost cost_of(const Request* request, uint32_t kind) {
  if (form_space(request->form) == kGlobal) return Cost{count_sectors(request), 0, 0};
  return count_wavefronts(request, kind == kEventLoad);
}

// Returns the cached cost of the same pattern of addresses at another start: a shift by whole words rotates the banks,
// and a shift by whole sectors keeps the sectors.
static Cost cached_cost(Trace* trace, const Request* request, uint32_t control, uint32_t lanes) {
  KnownCost* known = &trace->known_costs[(control ^ request->form) * 0x9e3779b1u >> 26];
  uint64_t moved = request->addresses[0] - known->addresses[0];
  bool global = form_space(request->form) == kGlobal;
  bool alike = known->control == control && known->form == request->form && known->lanes == lanes &&
               !(moved & (global ? 31 : 3));
  uint64_t differing = 0;
  for (uint32_t index = 0; alike && index < request->count; ++index) {
    differing |= request->addresses[index] - known->addresses[index] - moved;
  }
  if (alike && !differing) return known->cost;
  *known = {control, request->form, lanes, cost_of(request, event_kind(control)), {}};
  memcpy(known->addresses, request->addresses, request->count * sizeof *request->addresses);
  return known->cost;
}

// Returns whether a request continues a window: the same lanes, each at the next address.
static bool follows(const Window* window, const Request* request, uint32_t kind, uint32_t epoch, uint32_t lanes) {
  bool alike =
      window->epoch == epoch && window->kind == kind && window->form == request->form && window->lanes == lanes;
  for (uint32_t index = 0; alike && index < request->count; ++index) {
    alike = request->addresses[index] - window->addresses[index] == request->bytes;
  }
  return alike;
}

// Counts the savings of accesses of `width` bytes. A device compiler merges neighbours within one aligned piece, also
// from different iterations of a loop, but not across a barrier, at which a warp takes a fresh log. `varying`: the bits
// in which the request's addresses differ.
static void follow_window(WarpLog* log, Count* count, uint32_t kind, const Request* request, Cost cost, uint32_t size,
                          uint32_t lanes, uint64_t varying) {
  uint64_t width = 8ull << size, first = request->addresses[0];
  if (request->bytes >= width) return;
  uint32_t hash = (uint32_t)(first / width) * 0x9e3779b1u >> 20;
  Window* window = &log->windows[size][hash % kWindows];
  if (first % width && follows(window, request, kind, log->epoch, lanes)) {
    auto* saved = &count->saved[size];
    if (!window->merged) {
      Request wide = *request;
      wide.bytes = (uint32_t)width;
      for (uint32_t index = 0; index < wide.count; ++index) wide.addresses[index] &= ~(width - 1);
      Cost whole = cost_of(&wide, kind);
      saved->sectors += window->cost.sectors - whole.sectors;
      saved->wavefronts += window->cost.wavefronts - whole.wavefronts;
      saved->ideal_wavefronts += window->cost.ideal_wavefronts - whole.ideal_wavefronts;
    }
    window->merged = true;
    ++saved->requests;
    saved->sectors += cost.sectors;
    saved->wavefronts += cost.wavefronts;
    saved->ideal_wavefronts += cost.ideal_wavefronts;
  } else if (!(varying & (width - 1))) {
    *window = {log->epoch, kind, request->form, request->count, lanes, false, cost, {}};
  } else {
    return;
  }
  memcpy(window->addresses, request->addresses, request->count * sizeof *request->addresses);
}

static void count_request(Trace* trace, WarpLog* log, uint32_t control, Request* request, Bounds bounds) {
  Count* count = count_of(trace, control, request->form);
  if (!count) return;
  request->bytes = form_bytes(request->form);
  bool global = form_space(request->form) == kGlobal;
  uint32_t lanes = 0;
  uint64_t varying = 0;
  for (uint32_t index = 0; index < request->count; ++index) {
    lanes |= 1u << request->lanes[index];
    varying |= request->addresses[index] ^ request->addresses[0];
  }
  Cost cost = cached_cost(trace, request, control, lanes);
  if (bounds & kUpperBound) {
    ++count->upper_requests;
    count->upper_sectors += cost.sectors;
    count->upper_wavefronts += cost.wavefronts;
  }
  if (!(bounds & kLowerBound)) return;
  ++count->requests;
  count->lanes += request->count;
  count->sectors += cost.sectors;
  count->wavefronts += cost.wavefronts;
  count->ideal_wavefronts += cost.ideal_wavefronts;
  if (global) count->ideal_sectors += (request->count * request->bytes + 31) / 32;
  if (global && trace->caches) {
    cache_request(trace->caches, request->addresses, request->count, request->bytes, event_kind(control),
                  form_bypasses_l1(request->form));
  }
  if (event_kind(control) == kEventAtomic) {
    count->collisions += count_collisions(request);
    return;
  }
  for (uint32_t size = 0; size < 2; ++size) {
    follow_window(log, count, event_kind(control), request, cost, size, lanes, varying);
  }
}
