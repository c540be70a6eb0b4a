// Implements cp.async: a thread's copy lands in shared memory when the thread waits for it, and not earlier.
//
// A GPU may be faster, so a kernel without the wait is sometimes right there; here it is always wrong. Until the wait,
// the cells of the destination mark a copy in flight, and an access to them is reported.
#pragma once
#include <stdlib.h>

#include "shadow.hpp"

struct AsyncCopy {
  AsyncCopy* next;
  char* to;
  uint32_t bytes, group, site;
  alignas(16) char data[16];
};

static void for_each_target_cell(Worker* worker, const AsyncCopy* copy,
                                 void (*visit)(const Trace*, SharedCell*, uint32_t)) {
  Trace* trace = worker->trace;
  size_t offset = copy->to - worker->shared_base;
  if (!trace || !trace->races || offset + copy->bytes > worker->shared_bytes) return;
  SharedCell* last = trace->shared_cells + ((offset + copy->bytes - 1) >> trace->shared_shift);
  for (SharedCell* cell = trace->shared_cells + (offset >> trace->shared_shift); cell <= last; ++cell) {
    if (cell->write_site == copy->site) visit(trace, cell, worker->current);
  }
}

static void start_copy_in_cell(const Trace*, SharedCell* cell, uint32_t) { cell->write_interval = kCopyInFlight; }

static void complete_copy_in_cell(const Trace* trace, SharedCell* cell, uint32_t self) {
  if (cell->write_interval != kCopyInFlight || (cell->writer & kThreadMask) != self) return;
  cell->write_interval = trace->interval;
  cell->write_clock = own_clock(trace, self);
}

static void forget_cell(const Trace*, SharedCell* cell, uint32_t) {
  if (cell->write_interval == kCopyInFlight) cell->write_interval = 0;
}

static AsyncCopy* unlink_oldest(Worker* worker, CopyQueue* queue) {
  AsyncCopy* copy = queue->oldest;
  queue->oldest = copy->next;
  copy->next = worker->free_copies;
  worker->free_copies = copy;
  --worker->copies_in_flight;
  return copy;
}

void forget_copies(Worker* worker) {
  for (uint32_t thread = 0; thread < worker->threads; ++thread) {
    CopyQueue* queue = &worker->copies[thread];
    while (queue->oldest) for_each_target_cell(worker, unlink_oldest(worker, queue), forget_cell);
  }
}

extern "C" {

void opb_commit_copies(void) { ++opb_worker->copies[opb_worker->current].group; }

// Lands all copies of the calling thread except those of the newest `pending` groups.
void opb_wait_for_copies(unsigned pending) {
  Worker* worker = opb_worker;
  CopyQueue* queue = &worker->copies[worker->current];
  while (queue->oldest && queue->oldest->group + pending < queue->group) {
    AsyncCopy* copy = unlink_oldest(worker, queue);
    memcpy(copy->to, copy->data, copy->bytes);
    for_each_target_cell(worker, copy, complete_copy_in_cell);
  }
}
}
