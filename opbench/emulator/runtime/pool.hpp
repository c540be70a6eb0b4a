// Keeps operating-system threads alive between launches; they share the blocks of each launch.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "spins.hpp"

constexpr uint32_t kMaxWorkers = 256;

struct Pool {
  pthread_mutex_t mutex;
  pthread_cond_t wake, done;
  uint32_t thread_count, active, running;
  uint64_t generation;
  Launch* launch;
  pid_t owner;
  pthread_t threads[kMaxWorkers];
};

static Pool pool = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, 0, nullptr, 0, {}};

static void* worker_main(void* argument) {
  uint32_t index = (uint32_t)(uintptr_t)argument;
  bool ready = false;
  pthread_mutex_lock(&pool.mutex);
  // The launch that made this thread already counts it, so the thread starts with the generation before that launch.
  uint64_t seen = pool.generation - 1;
  for (;;) {
    while (pool.generation == seen) pthread_cond_wait(&pool.wake, &pool.mutex);
    seen = pool.generation;
    // A thread that this launch does not wait for may wake after the launch has ended: it must not access the launch.
    if (index >= pool.active) continue;
    pthread_mutex_unlock(&pool.mutex);
    if (!opb_worker) opb_worker = (Worker*)allocate_zeros(sizeof(Worker));
    ready = opb_worker && (ready || use_signal_stack());
    if (ready) {
      opb_worker->system_thread = pthread_self();
      run_blocks(opb_worker, pool.launch);
    } else {
      __atomic_store_n(&pool.launch->aborted, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_lock(&pool.mutex);
    if (--pool.running == 0) pthread_cond_signal(&pool.done);
  }
  return nullptr;
}

// The threads of a pool do not survive a fork: the child starts anew.
static void adopt_pool() {
  if (pool.owner == getpid()) return;
  pthread_mutex_init(&pool.mutex, nullptr);
  pthread_cond_init(&pool.wake, nullptr);
  pthread_cond_init(&pool.done, nullptr);
  pool.thread_count = pool.running = 0;
  pool.owner = getpid();
}

static void start_threads(uint32_t wanted) {
  // Signals such as SIGINT belong to Python's main thread; only faults are handled where they happen.
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, SIGFPE);
  sigdelset(&blocked, SIGILL);
  sigdelset(&blocked, kTick);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  for (; pool.thread_count < wanted; ++pool.thread_count) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, worker_main, (void*)(uintptr_t)pool.thread_count) != 0) break;
    pthread_detach(thread);
    pool.threads[pool.thread_count] = thread;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Returns false if the system grants no thread at all.
static bool run_in_pool(Launch* launch) {
  adopt_pool();
  if (launch->workers > kMaxWorkers) launch->workers = kMaxWorkers;
  pthread_mutex_lock(&pool.mutex);
  ++pool.generation;
  start_threads(launch->workers);
  if (launch->workers > pool.thread_count) launch->workers = pool.thread_count;
  pool.launch = launch;
  pool.active = pool.running = launch->workers;
  pthread_cond_broadcast(&pool.wake);
  while (pool.running > 0) {
    if (!launch->spins && !launch->block_milliseconds) {
      pthread_cond_wait(&pool.done, &pool.mutex);
      continue;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += kTickNanoseconds;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
    if (pthread_cond_timedwait(&pool.done, &pool.mutex, &until) == 0) continue;
    for (uint32_t index = 0; index < pool.active; ++index) pthread_kill(pool.threads[index], kTick);
  }
  pthread_mutex_unlock(&pool.mutex);
  return launch->workers > 0;
}
