// Bulk copies, with a tensor map or without: where each byte goes, when it lands, and whom it may surprise.
//
// A load lands when nobody of its block can run, or earlier by lot; a store reads shared memory when its thread waits.
#pragma once
#include "mbarrier.hpp"

// ---- the geometry of tensor maps

static inline uint32_t inner_bytes(const opb_tensor_map& map) {
  return (map.im2col ? map.channels : map.box[0]) * map.bytes;
}

static inline uint32_t extent_of(const opb_tensor_map& map, uint32_t axis) {
  return (map.box[axis] + map.steps[axis] - 1u) / map.steps[axis];
}

static uint32_t row_count(const opb_tensor_map& map) {
  uint32_t rows = map.im2col ? map.pixels : 1;
  for (uint32_t axis = 1; axis < map.rank && !map.im2col; ++axis) rows *= extent_of(map, axis);
  return rows;
}

// A swizzled row takes its span, however short it is.
static inline uint32_t row_pitch(const opb_tensor_map& map) { return map.swizzle ? 16u << map.swizzle : inner_bytes(map); }

// 16-byte pieces trade places by bits 7 to 9 of the address itself; a descriptor's base offset is taken off these first.
static inline uint32_t swizzled(uint32_t address, uint32_t span, uint32_t base_offset = 0) {
  return address ^ (((address >> 7) - base_offset) & (span / 16 - 1)) << 4;
}

// One row of a copy: `exists` unless it lies outside of the tensor; the byte at `first` of it is `from`'s.
struct BulkRow {
  uint64_t from;
  int64_t first;
  uint32_t number;
  bool exists;
};

template <class Visit>
static void each_row(const opb_tensor_map& map, const opb_place& place, Visit visit) {
  int64_t at[5] = {};
  for (uint32_t axis = 1; axis < map.rank; ++axis) at[axis] = place.at[axis];
  uint32_t index[5] = {}, rows = row_count(map);
  for (uint32_t number = 0; number < rows; ++number) {
    BulkRow row = {map.address, (int64_t)place.at[0] * map.bytes, number, true};
    for (uint32_t axis = 1; axis < map.rank; ++axis) {
      int64_t here = at[axis] + (map.im2col && axis + 1 < map.rank ? place.offsets[axis - 1] : 0);
      row.exists = row.exists && here >= 0 && here < map.dims[axis];
      row.from += here * map.strides[axis - 1];
    }
    visit(row);
    for (uint32_t axis = 1; axis < map.rank; ++axis) {  // the next row of the box; or pixel of the bounding box, then image
      at[axis] += map.steps[axis];
      bool last = axis + 1 == map.rank;
      if (map.im2col ? last || at[axis] <= (int64_t)map.dims[axis] - 1 + map.upper[axis - 1]
                     : ++index[axis] < extent_of(map, axis)) {
        break;
      }
      at[axis] = map.im2col ? map.lower[axis - 1] : place.at[axis];
      index[axis] = 0;
    }
  }
}

// Every 16 bytes of a copy: visit(offset in shared memory, global address, how many of them exist there and from where).
template <class Visit>
static void each_piece(const Bulk& copy, Visit visit) {
  if (copy.bytes) {
    for (uint32_t done = 0; done < copy.bytes; done += 16) visit(copy.shared + done, copy.from + done, 0u, 16u);
    return;
  }
  const opb_tensor_map& map = copy.map;
  const uint32_t span = map.swizzle ? 16u << map.swizzle : 0, pitch = row_pitch(map), inner = inner_bytes(map);
  const int64_t end = (int64_t)map.dims[0] * map.bytes;
  each_row(map, copy.place, [&](const BulkRow& row) {
    for (uint32_t done = 0; done < inner; done += 16) {
      uint32_t to = copy.shared + row.number * pitch + done;
      int64_t at = row.first + done, low = at < 0 ? -at : 0, high = end - at < 16 ? end - at : 16;
      if (!row.exists || low >= high) low = high = 0;
      visit(span ? swizzled(to, span) : to, row.from + (uint64_t)at, (uint32_t)low, (uint32_t)high);
    }
  });
}

// What a copy takes of shared memory, gaps of a swizzled box included; and what it adds to a barrier's count.
static uint32_t footprint(const Bulk& copy) {
  return copy.bytes ? copy.bytes : row_count(copy.map) * row_pitch(copy.map);
}
static uint32_t counted_bytes(const Bulk& copy) {
  return copy.bytes ? copy.bytes : row_count(copy.map) * inner_bytes(copy.map);
}

static uint32_t round_to_tf32(uint32_t bits) {  // to nearest even
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
}

// ---- what a trace knows of it

template <class Visit>
static void each_shared_cell(Worker* owner, uint32_t offset, uint32_t bytes, Visit visit) {
  Trace* trace = owner->trace;
  if (!trace || !trace->races || offset + bytes > owner->shared_bytes) return;
  SharedCell* last = trace->shared_cells + ((offset + bytes - 1) >> trace->shared_shift);
  for (SharedCell* cell = trace->shared_cells + (offset >> trace->shared_shift); cell <= last; ++cell) visit(trace, cell);
}

static void report_cell(Worker* worker, ReportKind kind, uint32_t site, uint32_t offset, uint32_t access, uint32_t other_site,
                        uint32_t other_thread, uint32_t other_access) {
  report_shared_race(worker, site, (uintptr_t)worker->shared_base + offset, 16, access, other_site, other_thread,
                     other_access, kind, kind == kReportUnfinishedBulk ? 3 : 1);
}

// Before the copy engine or wgmma reads 16 bytes for a thread: somebody must have written them, and made it known.
static void check_async_read(Worker* worker, uint32_t offset, uint32_t site, uint32_t async_read) {
  uint32_t self = worker->current;
  each_shared_cell(worker, offset, 16, [&](Trace* trace, SharedCell* cell) {
    uint32_t writer = cell->writer & kThreadMask;
    bool bulk = cell->writer & kBulkFlag;
    cell->async_read = async_read;
    if (cell->write_interval == kCopyInFlight) {
      report_cell(worker, kReportUnfinishedBulk, site, offset, OPB_ACCESS_LOAD, cell->write_site, writer, OPB_ACCESS_STORE);
      return;
    }
    if (cell->write_interval < trace->block_interval) {
      trace_report(worker, kReportUninitialisedShared, site, (uintptr_t)worker->shared_base + offset, 16, OPB_ACCESS_LOAD,
                   nullptr);
      return;
    }
    bool now = cell->write_interval == trace->interval;
    if (now && writer != self && !ordered(trace, writer, cell->write_clock, self)) {
      report_cell(worker, bulk ? kReportUnfinishedBulk : kReportSharedRace, site, offset, OPB_ACCESS_LOAD, cell->write_site,
                  writer, OPB_ACCESS_STORE);
      return;
    }
    if (bulk || trace->proxy_fences[writer] != cell->write_fences) return;
    const ClockRow* view = trace->proxy_views[self];
    bool seen = view && (view->interval > cell->write_interval ||
                         (view->interval == cell->write_interval && view->at[writer] > cell->write_clock));
    if (seen) return;
    report_cell(worker, kReportMissingFence, site, offset, OPB_ACCESS_LOAD, cell->write_site, writer, OPB_ACCESS_STORE);
  });
}

static uint32_t new_async_read(Worker* worker, uint32_t site) {
  Trace* trace = worker->trace;
  if (!trace || !trace->races) return 0;
  *append(&trace->async_reads.items, &trace->async_reads.count, &trace->async_reads.capacity) = {site, worker->current, false};
  return trace->async_reads.count;
}

static void end_async_read(Worker* worker, uint32_t number) {
  if (number && worker->trace) worker->trace->async_reads.items[number - 1].done = true;
}

// Global memory that the copy engine reads or writes for this block.
static void check_bulk_global(Worker* worker, const Bulk& copy, uint32_t access) {
  Trace* trace = worker->trace;
  if (!trace) return;
  each_piece(copy, [&](uint32_t, uint64_t address, uint32_t low, uint32_t high) {
    if (low == high) return;
    const Region* region = find_region(worker, address + low, high - low, access, copy.site);
    if (!region || region->space != kGlobal || !trace->races) return;
    for (uint32_t at = low; at < high; at += 4) {
      check_global(worker, trace, region->memory, address + at, high - at < 4 ? high - at : 4, access, copy.site);
    }
  });
}

// Before a load may write: whoever reads or writes there now is too late.
static void start_in_cells(Worker* worker, Worker* owner, const Bulk& copy) {
  uint32_t self = worker->current;
  each_piece(copy, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    each_shared_cell(owner, offset, 16, [&](Trace* trace, SharedCell* cell) {
      bool other;
      uint32_t writer = cell->writer & kThreadMask;
      if (owner == worker && cell->write_interval == trace->interval && writer != self &&
          !ordered(trace, writer, cell->write_clock, self)) {
        report_cell(worker, kReportSharedRace, copy.site, offset, OPB_ACCESS_STORE, cell->write_site, writer, OPB_ACCESS_STORE);
      } else if (owner == worker && readers_unordered(trace, cell, self, &other)) {
        report_cell(worker, kReportEarlyOverwrite, copy.site, offset, OPB_ACCESS_STORE, other ? cell->other_site : cell->read_site,
                    other ? cell->other_reader : cell->reader & kThreadMask, OPB_ACCESS_LOAD);
      }
      cell->write_interval = kCopyInFlight;
      cell->write_site = copy.site;
      cell->writer = (uint16_t)(self | kBulkFlag);
      cell->write_clock = copy.clock;
    });
  });
}

// Written from elsewhere, at a time that is not followed: every later access of the block counts as ordered.
static void write_cells(Worker* owner, uint32_t offset, uint32_t bytes, uint32_t site) {
  if (owner->trace && shift_of(offset, bytes) < owner->trace->shared_shift) refine_shared(owner->trace, shift_of(offset, bytes));
  each_shared_cell(owner, offset, bytes, [&](Trace* trace, SharedCell* cell) {
    cell->write_interval = trace->interval;
    cell->write_site = site;
    cell->writer = kBulkFlag;
    cell->write_clock = kClockLimit;
  });
}

static bool access_another_block(Worker* worker, uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site) {
  SharedPlace place = shared_place(worker, address);
  if (!place.worker || place.worker == worker) return false;
  if (shared_room(place.worker, place.offset) < bytes) return false;
  if (access != OPB_ACCESS_LOAD) write_cells(place.worker, place.offset, bytes, site);
  return true;
}

static void land_in_cells(Worker* owner, const Bulk& copy, Mbarrier* barrier) {
  Trace* trace = owner->trace;
  if (!trace) return;
  each_piece(copy, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    each_shared_cell(owner, offset, 16, [&](Trace*, SharedCell* cell) {
      if (cell->write_interval == kCopyInFlight && cell->write_site == copy.site) cell->write_interval = trace->interval;
    });
  });
  // Whoever waits for the barrier learns of the copy, as if its thread had told it.
  if (!barrier->told) barrier->told = (ClockRow*)calloc(1, sizeof(ClockRow));
  ClockRow* row = barrier->told;
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);
  row->interval = trace->interval;
  if (row->at[copy.thread] <= copy.clock) row->at[copy.thread] = (uint16_t)(copy.clock + 1);
}

// ---- what is known without a trace: copies under way, and operands that wgmma has in its hands

static void check_products_in(Worker* owner, const Bulk& copy, Worker* worker);

// A reader of the copy engine or of wgmma at 16 bytes of shared memory that a copy may still be filling.
static bool check_loads_in(Worker* worker, uint32_t offset, const char* who, uint32_t site) {
  for (const Bulk& load : worker->events->loads) {
    if (offset < load.shared || offset >= load.shared + footprint(load)) continue;
    report_at(worker, kReportUnfinishedBulk, site,
              "%s reads byte %d of shared memory, which the copy at @%x@ may still be filling: nobody has waited for its mbarrier",
              who, told_offset(worker, offset), load.site);
    return true;
  }
  return false;
}

// ---- loads

static void land(Worker* worker, Worker* owner, uint32_t index) {
  const Bulk load = owner->events->loads[index];
  owner->events->loads.remove(index);
  char* base = owner->shared_base;
  if (load.inlined) {
    memcpy(base + load.shared, load.data, load.bytes);
  } else {
    bool rounds = !load.bytes && load.type == OPB_TF32;
    each_piece(load, [&](uint32_t to, uint64_t from, uint32_t low, uint32_t high) {
      if (high - low < 16) memset(base + to, 0, 16);
      memcpy(base + to + low, (const char*)(uintptr_t)from + low, high - low);
      for (uint32_t word = 0; rounds && word < 4; ++word) {
        uint32_t* bits = (uint32_t*)(base + to) + word;
        *bits = round_to_tf32(*bits);
      }
    });
  }
  Mbarrier* barrier = find_mbarrier(owner, load.barrier);
  if (!barrier) return;  // forgotten meanwhile
  if (load.inlined) {
    write_cells(owner, load.shared, load.bytes, load.site);
  } else {
    land_in_cells(owner, load, barrier);
  }
  barrier->bytes -= counted_bytes(load);
  end_phase_if_complete(worker, owner, barrier);
}

static void land_next(Worker* worker) {
  uint32_t count = worker->events->loads.count;
  land(worker, worker, worker->launch->seed ? (uint32_t)(draw(worker) % count) : 0);
}

static void start_load(Worker* worker, Worker* owner, Bulk load) {
  if (worker->team->finished[owner->rank]) {
    report_at(worker, kReportClusterExit, load.site,
              "a copy into a block that has ended: a cluster must meet before its blocks leave");
    fatal_event(worker);
  }
  Mbarrier* barrier = find_mbarrier(owner, load.barrier);
  if (!barrier) {
    report_at(worker, kReportMbarrier, load.site, "the copy reports to byte %d of shared memory%s, where there is no mbarrier",
              told_offset(owner, load.barrier), owner == worker ? "" : " of another block");
    fatal_event(worker);
  }
  load.own = owner == worker;
  check_products_in(owner, load, worker);
  if (!load.inlined) start_in_cells(worker, owner, load);
  owner->events->used = true;
  owner->events->loads.add(load);
  something_happened(worker);
  if (by_lot(worker, 2)) land(worker, owner, owner->events->loads.count - 1);
}

// To the same place in each block of the mask, or to the block whose address it is.
static void start_loads(Worker* worker, Bulk load, uint64_t to, uint64_t barrier, uint32_t ranks) {
  SharedPlace place = checked_range(worker, to, footprint(load), "a copy", load.site);
  SharedPlace bar = checked_range(worker, barrier, 8, "an mbarrier", load.site);
  load.shared = place.offset;
  load.barrier = bar.offset;
  if (worker->trace) {
    uint16_t* known = &worker->trace->clocks[load.thread][load.thread];
    load.clock = *known;
    worker->trace->clocks_used[load.thread / kLanes] = worker->trace->clocks_wide = true;
    if (*known < kClockLimit) ++*known;
  }
  if (!ranks && place.worker != bar.worker) {
    report_at(worker, kReportIllegalInstruction, load.site, "a copy into one block that reports to an mbarrier of another");
    fatal_event(worker);
  }
  if (ranks || place.worker != worker) be_late(worker);
  if (!ranks) return start_load(worker, place.worker, load);
  if (ranks >> worker->team->size) {
    report_at(worker, kReportIllegalInstruction, load.site, "a multicast to blocks %#x of a cluster of %u", ranks,
              worker->team->size);
    fatal_event(worker);
  }
  for (uint32_t rank = 0; rank < worker->team->size; ++rank) {
    if (ranks >> rank & 1) start_load(worker, worker->team->members[rank], load);
  }
}

static Bulk new_copy(Worker* worker, opb_bulk_kind kind, uint32_t site) {
  Bulk copy;
  memset(&copy, 0, sizeof copy);
  copy.kind = kind;
  copy.site = site;
  copy.thread = worker->current;
  return copy;
}

// A copy by a tensor map, and all that makes it an illegal instruction.
static Bulk mapped_copy(Worker* worker, opb_bulk_kind kind, const void* pointer, const opb_place* place, uint64_t shared,
                        uint32_t site) {
  Bulk copy = new_copy(worker, kind, site);
  memcpy(&copy.map, pointer, sizeof copy.map);
  copy.place = *place;
  copy.type = (opb_type)copy.map.type;
  const opb_tensor_map& map = copy.map;
  const uint32_t byte = shared_place(worker, shared).offset;
  const char* wrong = nullptr;
  if (map.magic != opb_tensor_map_magic) {
    wrong = "what the copy is given is no tensor map; the launch must pass it by value, as const __grid_constant__";
  } else if (map.im2col != (kind == OPB_LOAD_IM2COL) && kind <= OPB_LOAD_IM2COL) {
    wrong = "a tiled copy by an im2col map, or the reverse";
  } else if (map.rank != place->rank) {
    wrong = "the copy has another number of coordinates than its map has dimensions";
  } else if ((int64_t)place->at[0] * map.bytes % 16) {
    wrong = "the innermost coordinate is no multiple of 16 bytes";
  } else if (byte % 128) {
    wrong = "a copy by a tensor map needs shared memory at a multiple of 128 bytes";
  }
  for (uint32_t axis = 0; !wrong && axis < map.rank; ++axis) {
    if (kind >= OPB_STORE && place->at[axis] < 0) wrong = "a store to a negative coordinate";
    if (kind != OPB_LOAD_IM2COL || axis == 0 || axis + 1 == map.rank) continue;
    int64_t low = map.lower[axis - 1], high = (int64_t)map.dims[axis] - 1 + map.upper[axis - 1];
    if (place->at[axis] < low || place->at[axis] > high) wrong = "an im2col copy begins outside of its bounding box";
  }
  if (wrong) {
    int at[5] = {};
    memcpy(at, place->at, sizeof at);
    report_at(worker, kReportIllegalInstruction, site, "illegal instruction: %s (coordinates %d %d %d %d %d, shared byte %d)",
              wrong, at[0], at[1], at[2], at[3], at[4], told_offset(worker, byte));
    fatal_event(worker);
  }
  return copy;
}

// ---- stores

// visit(piece of shared memory, global address, low, high)
static unsigned char* image_of(Worker* worker, const Bulk& store) {
  unsigned char *image = (unsigned char*)malloc(footprint(store) + 16), *at = image;
  each_piece(store, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    memcpy(at, worker->shared_base + offset, 16);
    at += 16;
  });
  return image;
}

template <class T>
static void reduce_as(opb_bulk_kind kind, char* to, const unsigned char* from, uint32_t bytes) {
  for (uint32_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T old, added;
    memcpy(&old, to + at, sizeof(T));
    memcpy(&added, from + at, sizeof(T));
    T result = kind == OPB_REDUCE_ADD ? old + added : (kind == OPB_REDUCE_MIN) == (added < old) ? added : old;
    memcpy(to + at, &result, sizeof(T));
  }
}

static void reduce_into(const Bulk& store, char* to, const unsigned char* from, uint32_t bytes) {
  if (store.type == OPB_F32) return reduce_as<float>(store.kind, to, from, bytes);
  if (store.type == OPB_S32) return reduce_as<int32_t>(store.kind, to, from, bytes);
  reduce_as<uint32_t>(store.kind, to, from, bytes);
}

static pthread_mutex_t reduction_mutex = PTHREAD_MUTEX_INITIALIZER;

static void carry_out(Worker* worker, Bulk store) {
  unsigned char *now = image_of(worker, store), *at = now;
  if (memcmp(now, store.seen, counted_bytes(store)) != 0) {
    report_at(worker, kReportEarlyOverwrite, store.site,
              "shared memory was written before this store had read it: its thread has not waited by wait_group.read");
  }
  if (store.kind != OPB_STORE) pthread_mutex_lock(&reduction_mutex);
  each_piece(store, [&](uint32_t, uint64_t to, uint32_t low, uint32_t high) {
    if (store.kind == OPB_STORE) {
      memcpy((char*)(uintptr_t)to + low, at + low, high - low);
    } else {
      reduce_into(store, (char*)(uintptr_t)to + low, at + low, high - low);
    }
    at += 16;
  });
  if (store.kind != OPB_STORE) pthread_mutex_unlock(&reduction_mutex);
  free(now);
  free(store.seen);
  end_async_read(worker, store.async_read);
}

static void start_store(Worker* worker, Bulk store, uint64_t from) {
  SharedPlace place = checked_range(worker, from, footprint(store), "a store", store.site);
  if (place.worker != worker) {
    report_at(worker, kReportIllegalInstruction, store.site, "a bulk store from another block's shared memory");
    fatal_event(worker);
  }
  store.shared = place.offset;
  store.group = worker->events->store_groups[store.thread];
  store.async_read = new_async_read(worker, store.site);
  bool told = false;
  each_piece(store, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    if (!told && check_loads_in(worker, offset, "this store", store.site)) told = true;
    check_async_read(worker, offset, store.site, store.async_read);
  });
  check_bulk_global(worker, store, store.kind == OPB_STORE ? OPB_ACCESS_STORE : OPB_ACCESS_ATOMIC);
  store.seen = image_of(worker, store);
  worker->events->stores.add(store);
}

extern "C" {

void opb_load_tensor(unsigned kind, unsigned long long to, const void* map, const opb_place* place,
                     unsigned long long barrier, unsigned ranks, const void* at) {
  Worker* worker = enter_event();
  Bulk load = mapped_copy(worker, (opb_bulk_kind)kind, map, place, to, site_of(worker, at));
  check_bulk_global(worker, load, OPB_ACCESS_LOAD);
  start_loads(worker, load, to, barrier, ranks);
}

void opb_store_tensor(unsigned kind, const void* map, const opb_place* place, unsigned long long from, const void* at) {
  Worker* worker = enter_event();
  start_store(worker, mapped_copy(worker, (opb_bulk_kind)kind, map, place, from, site_of(worker, at)), from);
}

static Bulk plain_copy(Worker* worker, opb_bulk_kind kind, uint64_t from, uint64_t shared, uint32_t bytes, uint32_t site) {
  Bulk copy = new_copy(worker, kind, site);
  copy.from = from;
  copy.bytes = bytes;
  if (bytes == 0 || bytes % 16 || from % 16 || shared % 16) {
    report_at(worker, kReportIllegalInstruction, site, "illegal instruction: a bulk copy of %u bytes between global address %#llx "
              "and shared byte %d; all must be multiples of 16", bytes, (unsigned long long)from, (int)(shared & 0xffffff));
    fatal_event(worker);
  }
  return copy;
}

void opb_load_bulk(bool from_global, unsigned long long to, unsigned long long from, unsigned bytes,
                   unsigned long long barrier, unsigned ranks, const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at);
  if (!from_global) {
    SharedPlace source = checked_range(worker, from, bytes, "a copy", site);
    from = (uint64_t)(uintptr_t)source.worker->shared_base + source.offset;
  }
  Bulk load = plain_copy(worker, OPB_LOAD_TILE, from, to, bytes, site);
  if (from_global) check_bulk_global(worker, load, OPB_ACCESS_LOAD);
  start_loads(worker, load, to, barrier, ranks);
}

void opb_store_bulk(unsigned kind, unsigned type, unsigned long long to, unsigned long long from, unsigned bytes,
                    const void* at) {
  Worker* worker = enter_event();
  Bulk store = plain_copy(worker, (opb_bulk_kind)kind, to, from, bytes, site_of(worker, at));
  store.type = (opb_type)type;
  start_store(worker, store, from);
}

void opb_store_async(unsigned long long to, unsigned long long barrier, const void* data, unsigned bytes, const void* at) {
  Worker* worker = enter_event();
  Bulk load = new_copy(worker, OPB_LOAD_TILE, site_of(worker, at));
  load.bytes = bytes;
  load.inlined = true;
  memcpy(load.data, data, bytes);
  start_loads(worker, load, to, barrier, 0);
}

void opb_commit_bulk(void) {
  Worker* worker = enter_event();
  ++worker->events->store_groups[worker->current];
}

// For the source's sake or the result's: a store that has read has written, too.
void opb_wait_for_bulk(unsigned pending, const void* at) {
  Worker* worker = enter_event();
  (void)at;
  uint32_t self = worker->current, now = worker->events->store_groups[self];
  List<Bulk>& stores = worker->events->stores;
  for (uint32_t index = 0; index < stores.count;) {
    if (stores[index].thread != self || stores[index].group + pending >= now) {
      ++index;
      continue;
    }
    Bulk store = stores[index];
    stores.remove(index);
    carry_out(worker, store);
  }
}

void opb_fence_proxies(void) {
  Worker* worker = opb_worker;
  Trace* trace = worker->trace;
  if (!trace) return;
  uint32_t self = worker->current;
  ++trace->proxy_fences[self];
  ClockRow*& view = trace->proxy_views[self];
  if (!view) view = (ClockRow*)malloc(sizeof(ClockRow));
  if (!view) abort();
  view->interval = trace->interval;
  memcpy(view->at, trace->clocks[self], worker->threads * sizeof(uint16_t));
}
}
