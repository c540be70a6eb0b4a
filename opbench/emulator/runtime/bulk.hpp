// Implements bulk copies (cp.async.bulk), with a tensor map or without.
//
// A load lands when no thread of its block can run, or earlier at random with a seed. A store reads shared memory when
// its thread waits, as late as a GPU may.
#pragma once
#include "async_shadow.hpp"
#include "operands.hpp"

// ---- conflicts that are found without a trace: with copies in flight and with operands of pending wgmma

// Reports a read by the copy engine or wgmma of 16 bytes of shared memory that a copy in flight writes.
static bool check_loads_in(Worker* worker, uint32_t offset, const char* who, uint32_t site) {
  for (const Bulk& load : worker->events->loads) {
    if (offset < load.shared || offset >= load.shared + footprint(load)) continue;
    report_at(
        worker, kReportUnfinishedBulk, site,
        "%s reads byte %d of shared memory, which the copy at @%x@ may still be filling: nobody has waited for it", who,
        reported_offset(worker, offset), load.site);
    return true;
  }
  return false;
}

// ---- loads

static void complete_load(Worker* worker, Worker* owner, uint32_t index) {
  const Bulk load = owner->events->loads[index];
  owner->events->loads.remove(index);
  char* base = owner->shared_base;
  if (load.inlined) {
    memcpy(base + load.shared, load.data, load.bytes);
  } else {
    bool rounds = !load.bytes && load.type == OPB_TF32;
    for_each_16_bytes(load, [&](uint32_t to, uint64_t from, uint32_t low, uint32_t high) {
      if (high - low < 16) memset(base + to, 0, 16);
      memcpy(base + to + low, (const char*)(uintptr_t)from + low, high - low);
      for (uint32_t word = 0; rounds && word < 4; ++word) {
        uint32_t* bits = (uint32_t*)(base + to) + word;
        *bits = round_to_tf32(*bits);
      }
    });
  }
  Mbarrier* barrier = find_mbarrier(owner, load.barrier);
  if (!barrier) return;  // the barrier was invalidated after the copy started
  if (load.inlined) {
    write_cells(owner, load.shared, load.bytes, load.site);
  } else {
    complete_copy_in_cells(owner, load, barrier);
  }
  barrier->bytes -= counted_bytes(load);
  end_phase_if_complete(worker, owner, barrier);
}

static void complete_next_load(Worker* worker) {
  uint32_t count = worker->events->loads.count;
  complete_load(worker, worker, worker->launch->seed ? (uint32_t)(next_random(worker) % count) : 0);
}

void unblock(Worker* worker) {
  Team* team = worker->team;
  if (!worker->events->used && team->size == 1) report_deadlock(worker);
  if (worker->events->loads.count) return complete_next_load(worker);
  if (run_other_block(worker)) return;
  if (team->stuck_at == team->progress) report_stuck(worker);
  // A thread in try_wait may stop waiting after a time and do something else.
  team->stuck_at = team->progress;
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    Worker* member = team->members[rank];
    for (uint32_t thread = 0; !team->finished[rank] && thread < member->threads; ++thread) {
      if (is_parked(member, thread) && member->events->waits[thread].kind == kWaitMbarrier) wake(member, thread);
    }
  }
}

static void start_load(Worker* worker, Worker* owner, Bulk load) {
  require_running(worker, owner, load.site, "a copy into", "a block");
  Mbarrier* barrier = find_mbarrier(owner, load.barrier);
  if (!barrier) {
    report_at(worker, kReportMbarrier, load.site,
              "the copy reports to byte %d of shared memory%s, where there is no mbarrier",
              reported_offset(owner, load.barrier), owner == worker ? "" : " of another block");
    abandon_launch(worker);
  }
  load.own = owner == worker;
  check_products_in(owner, load, worker);
  for (const Bulk& other : owner->events->loads) {
    if (load.shared >= other.shared + footprint(other) || other.shared >= load.shared + footprint(load)) continue;
    report_at(worker, kReportEarlyOverwrite, load.site,
              "this copy overwrites what the copy at @%x@ may still be writing: nobody has waited for that",
              other.site);
    break;
  }
  if (!load.inlined) start_copy_in_cells(worker, owner, load);
  owner->events->used = true;
  owner->events->loads.add(load);
  count_progress(worker);
  if (at_random(worker, 2)) complete_load(worker, owner, owner->events->loads.count - 1);
}

// Starts a load into the same offset of each block of the mask `ranks`, or into the block that the address names.
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
    report_at(worker, kReportIllegalInstruction, load.site,
              "a copy into one block that reports to an mbarrier of another");
    abandon_launch(worker);
  }
  if (ranks || place.worker != worker) run_others_first(worker);
  if (!ranks) return start_load(worker, place.worker, load);
  if (ranks >> worker->team->size) {
    report_at(worker, kReportIllegalInstruction, load.site, "a multicast to blocks %#x of a cluster of %u", ranks,
              worker->team->size);
    abandon_launch(worker);
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

// Starts a copy by a tensor map; reports every use that is an illegal instruction.
static Bulk mapped_copy(Worker* worker, opb_bulk_kind kind, const void* pointer, const opb_place* place,
                        uint64_t shared, uint32_t site) {
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
    report_at(worker, kReportIllegalInstruction, site,
              "illegal instruction: %s (coordinates %d %d %d %d %d, shared byte %d)", wrong, at[0], at[1], at[2], at[3],
              at[4], reported_offset(worker, byte));
    abandon_launch(worker);
  }
  return copy;
}

// ---- stores

// Returns a copy of the bytes of shared memory that a store reads, in pieces of 16 bytes; the caller frees it.
static unsigned char* image_of(Worker* worker, const Bulk& store) {
  unsigned char *image = (unsigned char*)allocate_zeros(footprint(store) + 16), *at = image;
  for_each_16_bytes(store, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
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

static void execute_bulk_store(Worker* worker, Bulk store) {
  unsigned char *now = image_of(worker, store), *at = now;
  if (memcmp(now, store.seen, counted_bytes(store)) != 0) {
    report_at(worker, kReportEarlyOverwrite, store.site,
              "shared memory was written before this store had read it: its thread has not waited by wait_group.read");
  }
  if (store.kind != OPB_STORE) pthread_mutex_lock(&reduction_mutex);
  for_each_16_bytes(store, [&](uint32_t, uint64_t to, uint32_t low, uint32_t high) {
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
  end_awaited_read(worker, store.async_read);
}

static void start_store(Worker* worker, Bulk store, uint64_t from) {
  SharedPlace place = checked_range(worker, from, footprint(store), "a store", store.site);
  if (place.worker != worker) {
    report_at(worker, kReportIllegalInstruction, store.site, "a bulk store from another block's shared memory");
    abandon_launch(worker);
  }
  store.shared = place.offset;
  store.group = worker->events->store_groups[store.thread];
  store.async_read = new_async_read(worker, store.site);
  bool reported = false;
  for_each_16_bytes(store, [&](uint32_t offset, uint64_t, uint32_t low, uint32_t high) {
    if (low == high) return;  // clipped bytes have no defined content
    if (!reported && check_loads_in(worker, offset, "this store", store.site)) reported = true;
    check_async_read(worker, offset + low, high - low, store.site, store.async_read);
  });
  check_bulk_global(worker, store, store.kind == OPB_STORE ? OPB_ACCESS_STORE : OPB_ACCESS_ATOMIC);
  count_copy(worker, store, store.kind == OPB_STORE ? kEventStore : kEventAtomic);
  store.seen = image_of(worker, store);
  worker->events->stores.add(store);
}

extern "C" {

void opb_load_tensor(unsigned kind, unsigned long long to, const void* map, const opb_place* place,
                     unsigned long long barrier, unsigned ranks, const void* at) {
  Worker* worker = enter_event();
  Bulk load = mapped_copy(worker, (opb_bulk_kind)kind, map, place, to, site_of(worker, at));
  check_bulk_global(worker, load, OPB_ACCESS_LOAD);
  count_copy(worker, load, kEventLoad);
  start_loads(worker, load, to, barrier, ranks);
}

void opb_store_tensor(unsigned kind, const void* map, const opb_place* place, unsigned long long from, const void* at) {
  Worker* worker = enter_event();
  start_store(worker, mapped_copy(worker, (opb_bulk_kind)kind, map, place, from, site_of(worker, at)), from);
}

static Bulk plain_copy(Worker* worker, opb_bulk_kind kind, uint64_t from, uint64_t shared, uint32_t bytes,
                       uint32_t site) {
  Bulk copy = new_copy(worker, kind, site);
  copy.from = from;
  copy.bytes = bytes;
  if (bytes == 0 || bytes % 16 || from % 16 || shared % 16) {
    report_at(worker, kReportIllegalInstruction, site,
              "illegal instruction: a bulk copy of %u bytes between global address %#llx "
              "and shared byte %d; all must be multiples of 16",
              bytes, (unsigned long long)from, (int)(shared & 0xffffff));
    abandon_launch(worker);
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
  if (from_global) {
    check_bulk_global(worker, load, OPB_ACCESS_LOAD);
    count_copy(worker, load, kEventLoad);
  }
  start_loads(worker, load, to, barrier, ranks);
}

void opb_store_bulk(unsigned kind, unsigned type, unsigned long long to, unsigned long long from, unsigned bytes,
                    const void* at) {
  Worker* worker = enter_event();
  Bulk store = plain_copy(worker, (opb_bulk_kind)kind, to, from, bytes, site_of(worker, at));
  store.type = (opb_type)type;
  start_store(worker, store, from);
}

void opb_store_async(unsigned long long to, unsigned long long barrier, const void* data, unsigned bytes,
                     const void* at) {
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

// Waits until the stores have read their source; here, a store then has also written its destination.
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
    execute_bulk_store(worker, store);
  }
}

void opb_fence_proxies(void) {
  Worker* worker = opb_worker;
  Trace* trace = worker->trace;
  if (!trace) return;
  uint32_t self = worker->current;
  ++trace->proxy_fences[self];
  VectorClock*& view = trace->proxy_views[self];
  if (!view) view = (VectorClock*)allocate_zeros(sizeof(VectorClock));
  view->interval = trace->interval;
  memcpy(view->at, trace->clocks[self], worker->threads * sizeof(uint16_t));
}
}
