// Runs the blocks of a cluster, each on its own operating-system thread, because shared memory is thread-local.
//
// Exactly one of these threads runs at a time. It hands over when none of its CUDA threads can run, or at random with a
// seed. Only the handover takes a lock.
#pragma once
#include "products.hpp"

uint32_t cluster_size(const Launch* launch) { return launch->cluster.x * launch->cluster.y * launch->cluster.z; }

static uint3 quotient(uint3 left, uint3 right) { return {left.x / right.x, left.y / right.y, left.z / right.z}; }
static uint3 place_in(uint64_t index, uint3 size) {
  return {(uint32_t)(index % size.x), (uint32_t)(index / size.x % size.y), (uint32_t)(index / size.x / size.y)};
}

// Returns the index of the block at a position: clusters follow the launch's order, and the blocks of a cluster are
// adjacent.
uint64_t block_at(const Launch* launch, uint64_t position) {
  const uint64_t size = cluster_size(launch), clusters = launch->block_count / size;
  const uint3 grid = launch->grid, shape = launch->cluster, all = quotient(grid, shape);
  const uint64_t number = (position / size * launch->order_multiplier + launch->order_offset) % clusters;
  const uint3 cluster = place_in(number, all), own = place_in(position % size, shape);
  return cluster.x * shape.x + own.x +
         (uint64_t)grid.x * (cluster.y * shape.y + own.y + (uint64_t)grid.y * (cluster.z * shape.z + own.z));
}

constexpr size_t kThreadStackBytes = 8 << 20;  // the usual stack size of a thread

static void run_member(Worker* worker) {
  Team* team = worker->team;
  team->started[worker->rank] = true;
  if (!team->dead) run_block(worker, team->first_position + worker->rank);
  if (worker->aborted) team->dead = true;
  team->finished[worker->rank] = true;
  ++team->progress;
}

static void* run_cluster_member(void* argument) {
  Worker* worker = opb_worker = (Worker*)argument;
  Team* team = worker->team;
  use_signal_stack();
  pthread_mutex_lock(&team->mutex);
  while (team->holder != worker->rank) pthread_cond_wait(&team->turn[worker->rank], &team->mutex);
  pthread_mutex_unlock(&team->mutex);
  for (;;) {
    if (!team->dead && !prepare(worker, worker->launch)) team->dead = true;
    run_member(worker);
    uint32_t next = 0;  // a member that has not finished; else the leader, which waits for the end
    for (uint32_t rank = 0; rank < team->size; ++rank) {
      if (!team->finished[rank]) next = rank;
    }
    switch_block(team, worker->rank, next);
  }
  return nullptr;
}

Team* make_team(Worker* leader) {
  Team* team = (Team*)allocate_zeros(sizeof(Team));
  if (!team) return nullptr;
  team->size = 1;
  team->members[0] = leader;
  pthread_mutex_init(&team->mutex, nullptr);
  for (pthread_cond_t& turn : team->turn) pthread_cond_init(&turn, nullptr);
  return team;
}

static bool add_member(Team* team, uint32_t rank) {
  Worker* member = (Worker*)allocate_zeros(sizeof(Worker));
  pthread_t thread;
  if (!member) return false;
  member->team = team;
  member->rank = rank;
  team->members[rank] = member;
  if (pthread_create(&thread, nullptr, run_cluster_member, member) != 0) {
    team->members[rank] = nullptr;
    free(member);
    return refuse(kThreadStackBytes);
  }
  member->system_thread = thread;
  pthread_detach(thread);
  return true;
}

// Runs the blocks of one cluster to their end; the calling thread runs the first block.
void run_cluster(Worker* worker, uint64_t first_position) {
  Team* team = worker->team;
  team->size = cluster_size(worker->launch);
  team->dead = false;
  team->progress = 1;
  team->stuck_at = 0;
  team->cluster_arrived = team->cluster_generation = 0;
  memset(team->settled, 0, sizeof team->settled);
  memset(team->unreleased, 0, sizeof team->unreleased);
  team->first_position = first_position;
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    team->started[rank] = team->finished[rank] = false;
    if (!team->members[rank] && !add_member(team, rank)) {
      team->size = 1;
      worker->aborted = true;
      return;
    }
    team->members[rank]->launch = worker->launch;
    team->members[rank]->aborted = false;
    forget_cluster_memory(team->members[rank]);
    if (!begin_events(team->members[rank], first_position + rank)) {
      team->size = 1;
      worker->aborted = true;
      return;
    }
  }
  run_member(worker);
  for (uint32_t rank = 1; rank < team->size; ++rank) {
    if (!team->finished[rank]) switch_block(team, 0, rank);
  }
  worker->aborted = team->dead;
}

// ---- the barrier of a cluster, for all threads that have not exited

// All accesses of the blocks so far happen before all later ones, unless a thread has arrived without a release.
static void order_after_cluster_barrier(Team* team) {
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    Trace* trace = team->started[rank] ? team->members[rank]->trace : nullptr;
    const bool released = !team->unreleased[rank];
    team->unreleased[rank] = false;
    if (!trace) continue;
    if (!team->finished[rank]) begin_moment(trace);
    if (released) team->settled[rank] = team->finished[rank] ? kNobody : trace->moment;
  }
}

static void end_cluster_phase_if_complete(Worker* worker) {
  Team* team = worker->team;
  uint32_t expected = 0;
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    if (team->finished[rank]) continue;
    const uint3 block = worker->launch->block;
    expected += team->started[rank] ? team->members[rank]->live_count : block.x * block.y * block.z;
  }
  if (team->cluster_arrived < expected) return;
  team->cluster_arrived = 0;
  ++team->cluster_generation;
  order_after_cluster_barrier(team);
  for (uint32_t rank = 0; rank < team->size; ++rank) {
    if (team->started[rank] && !team->finished[rank]) wake_all(team->members[rank], kWaitCluster, 0);
  }
}

void thread_left(Worker* worker) {
  if (worker->team->cluster_arrived) end_cluster_phase_if_complete(worker);
}

void end_events(Worker* worker) {
  Events* events = worker->events;
  if (!events->used) return;
  end_products(worker);
  for (Bulk& store : events->stores) {
    if (!worker->aborted) {
      report_at(worker, kReportUnfinishedBulk, store.site,
                "the block ends before this store's thread has waited for it");
    }
    end_async_read(worker, store.async_read);
    free(store.seen);
  }
  for (const Bulk& load : events->loads) {
    if (worker->aborted) break;
    report_at(worker, load.own ? kReportUnfinishedBulk : kReportClusterExit, load.site,
              "the block ends before this copy into it has landed: nobody has waited for its mbarrier");
  }
  events->stores.clear(), events->loads.clear();
}

extern "C" {

unsigned opb_cluster_rank(void) { return opb_worker->rank; }

uint3 opb_cluster_place(unsigned which) {
  const Launch* launch = opb_worker->launch;
  const uint3 shape = launch->cluster, block = opb_current.block;
  switch (which) {
    case 0:
      return {block.x % shape.x, block.y % shape.y, block.z % shape.z};
    case 1:
      return shape;
    case 2:
      return quotient(block, shape);
    default:
      return quotient(launch->grid, shape);
  }
}

void opb_cluster_arrive(bool releases, const void* at) {
  Worker* worker = enter_event();
  (void)at;
  worker->events->cluster_waits[worker->current] = worker->team->cluster_generation;
  if (releases || has_just_fenced(worker)) {
    release_clock(worker, &worker->events->cluster_clock);
  } else {
    worker->team->unreleased[worker->rank] = true;
  }
  worker->uses_cluster_barrier = true;
  ++worker->team->cluster_arrived;
  count_progress(worker);
  end_cluster_phase_if_complete(worker);
}

void opb_cluster_wait(const void* at) {
  Worker* worker = enter_event();
  uint32_t site = site_of(worker, at), self = worker->current;
  while (worker->team->cluster_generation == worker->events->cluster_waits[self]) {
    park(worker, {kWaitCluster, 0, 0, site});
  }
  acquire_clock(worker, worker->events->cluster_clock);
}
}
