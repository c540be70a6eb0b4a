// Checks the accesses of the copy engine and of wgmma against the shadow memory, and counts them.
//
// Both read and write shared memory asynchronously, by the async proxy: their reads need a fence.proxy.async after the
// writes of threads, and last until the thread has waited for them; their writes are in flight until they land.
// bulk.hpp and products.hpp call this header.
#pragma once
#include "count.hpp"
#include "tensor_map.hpp"

template <class Visit>
static void for_each_shared_cell(Worker* owner, uint32_t offset, uint32_t bytes, Visit visit) {
  Trace* trace = owner->trace;
  if (!trace || !trace->races || offset + bytes > owner->shared_bytes) return;
  SharedCell* last = trace->shared_cells + ((offset + bytes - 1) >> trace->shared_shift);
  for (SharedCell* cell = trace->shared_cells + (offset >> trace->shared_shift); cell <= last; ++cell)
    visit(trace, cell);
}

static void report_cell(Worker* worker, ReportKind kind, uint32_t site, uint32_t offset, uint32_t access,
                        uint32_t other_site, uint32_t other_thread, uint32_t other_access) {
  uintptr_t address = (uintptr_t)worker->shared_base + offset;
  report_shared_race(worker, site, address, 16, access, other_site, other_thread, other_access, kind,
                     kind == kReportUnfinishedBulk ? 3 : 1, {address, 16});
}

// Checks that up to 16 bytes have been written, and that the write happens before a read by the copy engine or wgmma.
static void check_async_read(Worker* worker, uint32_t offset, uint32_t bytes, uint32_t site, uint32_t async_read) {
  uint32_t self = worker->current;
  for_each_shared_cell(worker, offset, bytes, [&](Trace* trace, SharedCell* cell) {
    uint32_t writer = cell->writer & kThreadMask;
    bool bulk = cell->writer & kBulkFlag;
    cell->async_read = async_read;
    if (cell->write_interval == kCopyInFlight) {
      report_cell(worker, kReportUnfinishedBulk, site, offset, OPB_ACCESS_LOAD, cell->write_site, writer,
                  OPB_ACCESS_STORE);
      return;
    }
    if (cell->write_interval < trace->block_interval) {
      trace_report(worker, kReportUninitialisedShared, site, (uintptr_t)worker->shared_base + offset, 16,
                   OPB_ACCESS_LOAD, nullptr);
      return;
    }
    bool now = cell->write_interval == trace->interval;
    if (now && writer != self && !ordered(trace, writer, cell->write_clock, self)) {
      report_cell(worker, bulk ? kReportUnfinishedBulk : kReportSharedRace, site, offset, OPB_ACCESS_LOAD,
                  cell->write_site, writer, OPB_ACCESS_STORE);
      return;
    }
    if (bulk || trace->proxy_fences[writer] != cell->write_fences) return;
    const VectorClock* view = trace->proxy_views[self];
    bool seen = view && (view->interval > cell->write_interval ||
                         (view->interval == cell->write_interval && view->at[writer] > cell->write_clock));
    if (seen) return;
    report_cell(worker, kReportMissingFence, site, offset, OPB_ACCESS_LOAD, cell->write_site, writer, OPB_ACCESS_STORE);
  });
}

static uint32_t new_async_read(Worker* worker, uint32_t site) {
  Trace* trace = worker->trace;
  if (!trace || !trace->races) return 0;
  *append(&trace->async_reads.items, &trace->async_reads.count, &trace->async_reads.capacity) = {site, worker->current,
                                                                                                 false, 0, 0};
  return trace->async_reads.count;
}

static void end_async_read(Worker* worker, uint32_t number) {
  if (number && worker->trace) worker->trace->async_reads.items[number - 1].done = true;
}

// Ends the read of a bulk store, for which its thread has waited.
static void end_awaited_read(Worker* worker, uint32_t number) {
  Trace* trace = worker->trace;
  end_async_read(worker, number);
  if (!number || !trace) return;
  AsyncRead* read = &trace->async_reads.items[number - 1];
  read->waited_interval = trace->interval;
  read->waited_clock = own_clock(trace, read->thread);
}

// Checks the global memory that the copy engine reads or writes for this block.
static void check_bulk_global(Worker* worker, const Bulk& copy, uint32_t access) {
  Trace* trace = worker->trace;
  if (!trace) return;
  for_each_16_bytes(copy, [&](uint32_t, uint64_t address, uint32_t low, uint32_t high) {
    if (low == high) return;
    const Region* region = find_region(worker, address + low, high - low, access, copy.site);
    if (!region || region->space != kGlobal || !trace->races) return;
    for (uint32_t at = low; at < high; at += 4) {
      check_global(worker, trace, region->memory, address + at, high - at < 4 ? high - at : 4, access, copy.site);
    }
  });
}

// ---- counts: L2 sectors of a copy, passes over shared memory of a wgmma

static Count* count_at(Worker* worker, uint32_t site, EventKind event, Space space) {
  Trace* trace = worker->trace;
  if (!trace || !trace->counting) return nullptr;
  return count_of(trace, site << kEventBits | event, (uint32_t)(pack_address(0, 16, space, true) >> 48));
}

static void count_copy(Worker* worker, const Bulk& copy, EventKind event) {
  Count* count = count_at(worker, copy.site, event, kBulk);
  if (!count) return;
  Trace* trace = worker->trace;
  Request request;
  request.count = 0, request.bytes = 16;
  const auto flush = [&] {
    if (!request.count) return;
    uint32_t sectors = count_sectors(&request);
    count->lanes += request.count;
    count->sectors += sectors, count->upper_sectors += sectors;
    count->ideal_sectors += (request.count * 16 + 31) / 32;
    if (trace->caches) cache_request(trace->caches, request.addresses, request.count, 16, event, true);
    request.count = 0;
  };
  ++count->requests, ++count->upper_requests;
  if (trace->caches) choose_stream(trace->caches, worker->current / kLanes);
  for_each_16_bytes(copy, [&](uint32_t, uint64_t address, uint32_t low, uint32_t high) {
    if (low == high) return;
    request.addresses[request.count++] = address & kAddressMask;
    if (request.count == kLanes) flush();
  });
  flush();
}

// Operands whose swizzle spreads 16-byte pieces over all banks take one pass for each 128 bytes. The passes of other
// layouts are not known, and are counted the same.
static void count_operands(Worker* worker, uint32_t site, uint32_t bytes) {
  Count* count = count_at(worker, site, kEventLoad, kOperand);
  if (!count) return;
  uint32_t passes = (bytes + 127) / 128;
  ++count->requests, ++count->upper_requests;
  count->lanes += bytes / 16;
  count->wavefronts += passes, count->ideal_wavefronts += passes, count->upper_wavefronts += passes;
}

// Marks the destination of a load as in flight; reports earlier accesses that do not happen before the load.
static void start_copy_in_cells(Worker* worker, Worker* owner, const Bulk& copy) {
  uint32_t self = worker->current;
  for_each_16_bytes(copy, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    for_each_shared_cell(owner, offset, 16, [&](Trace* trace, SharedCell* cell) {
      Reader reader;
      uint32_t writer = cell->writer & kThreadMask;
      if (owner == worker && cell->write_interval == trace->interval && writer != self &&
          !ordered(trace, writer, cell->write_clock, self)) {
        report_cell(worker, kReportSharedRace, copy.site, offset, OPB_ACCESS_STORE, cell->write_site, writer,
                    OPB_ACCESS_STORE);
      } else if (owner == worker && reader_unordered(trace, cell, OPB_ACCESS_STORE, self, &reader)) {
        report_cell(worker, kReportEarlyOverwrite, copy.site, offset, OPB_ACCESS_STORE, reader.site,
                    reader.thread & kThreadMask, OPB_ACCESS_LOAD);
      }
      cell->write_interval = kCopyInFlight;
      cell->write_site = copy.site;
      cell->writer = (uint16_t)(self | kBulkFlag);
      cell->write_clock = copy.clock;
    });
  });
}

// Records a write by another block, which counts as ordered before every later access of the owner.
static void write_cells(Worker* owner, uint32_t offset, uint32_t bytes, uint32_t site) {
  if (owner->trace && shift_of(offset, bytes) < owner->trace->shared_shift)
    refine_shared(owner->trace, shift_of(offset, bytes));
  for_each_shared_cell(owner, offset, bytes, [&](Trace* trace, SharedCell* cell) {
    cell->write_interval = trace->interval;
    cell->write_site = site;
    cell->writer = kBulkFlag;
    cell->write_clock = kClockLimit;
  });
}

// Returns whether a range lies in one of the shared arrays of a block that has begun.
static bool is_in_array(const Worker* owner, uintptr_t address, uint32_t bytes) {
  const Trace* trace = owner->trace;
  for (uint32_t index = 0; trace && index < trace->region_count; ++index) {
    const Region& region = trace->regions[index];
    if (region.space == kShared && address >= region.start && address + bytes <= region.end) return true;
  }
  return false;
}

bool access_another_block(Worker* worker, uintptr_t address, uint32_t bytes, uint32_t access, uint32_t site) {
  SharedPlace place = shared_place(worker, address);
  if (!place.worker || place.worker == worker || worker->launch->cooperative) return false;
  Trace* trace = worker->trace;
  Worker* owner = place.worker;
  require_running(worker, owner, site, "access to", "shared memory of a block");
  if (!is_in_array(owner, address, bytes)) {
    trace_report(worker, kReportSharedBounds, site, address, bytes, access, nullptr);
    return true;
  }
  if (access == OPB_ACCESS_ATOMIC || trace->is_volatile) {
    bool reads = access != OPB_ACCESS_STORE, writes = access != OPB_ACCESS_LOAD;
    synchronise(worker, trace, address, trace->word, reads, writes, true);
  }
  if (trace->in_cluster && owner->trace) check_cluster_shared(worker, owner, address, bytes, access, site);
  if (access != OPB_ACCESS_LOAD) write_cells(owner, place.offset, bytes, site);
  return true;
}

static void complete_copy_in_cells(Worker* owner, const Bulk& copy, Mbarrier* barrier) {
  Trace* trace = owner->trace;
  if (!trace) return;
  for_each_16_bytes(copy, [&](uint32_t offset, uint64_t, uint32_t, uint32_t) {
    for_each_shared_cell(owner, offset, 16, [&](Trace*, SharedCell* cell) {
      if (cell->write_interval == kCopyInFlight && cell->write_site == copy.site)
        cell->write_interval = trace->interval;
    });
  });
  // The copy happens before a completed wait for the barrier, as if the copying thread had arrived.
  if (!barrier->released_clock) barrier->released_clock = (VectorClock*)allocate_zeros(sizeof(VectorClock));
  VectorClock* row = barrier->released_clock;
  if (row->interval != trace->interval) memset(row->at, 0, sizeof row->at);
  row->interval = trace->interval;
  if (row->at[copy.thread] <= copy.clock) row->at[copy.thread] = (uint16_t)(copy.clock + 1);
}
