// Faults of asynchronous kernels, one in each kernel, and right kernels beside them. A comment such as
// `// reads_too_soon: unfinished copy` says what is found at its line in the kernel of that name; nothing is found in
// kernels whose names begin with `right_`. Every kernel is launched as `// launch:` before it says.
#include "asynchronous.cuh"

extern __shared__ __align__(1024) unsigned char memory[];
constexpr int STAGES = 2, A_BYTES = 64 * 128, STAGE = A_BYTES + 16 * 128, STEPS = 5;

enum Fault {
  NONE, SUMS_READ, SUMS_WRITTEN, NEVER_WAITS, STAGE_BACK_EARLY, NO_WGMMA_FENCE, NO_FENCE_AGAIN, WRONG_PARITY, TOO_MANY_BYTES,
  TOO_FEW_BYTES, ARRIVAL_MISSING, ARRIVAL_TOO_MANY, NO_INIT, NO_COPY_WAIT, ONE_WARP_WAITS, BEYOND, DIFFERENT, OVERWRITTEN,
  NO_STAGE_WAIT,
};

// out [64][16] = a [64][64 * STEPS] times b [16][64 * STEPS] by 160 threads: a warpgroup multiplies, thread 128 copies.
template <Fault fault>
__device__ __forceinline__ void multiply(const TensorMap& map_a, const TensorMap& map_b, float* out) {
  const u32 base = address_of(memory), full = base + STAGES * STAGE, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init(full + 8 * i, 1);
      if (fault != NO_INIT) init(empty + 8 * i, fault == ARRIVAL_MISSING ? 2 : 1);
    }
    init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    for (int step = 0; threadIdx.x == 128 && step < STEPS; ++step) {
      const u32 stage = step % STAGES, turn = step / STAGES % 2, to = base + stage * STAGE;
      if (fault != NO_STAGE_WAIT)
        wait(empty + 8 * stage, fault == WRONG_PARITY ? turn : turn ^ 1);  // no_init: mbarrier; wrong_parity: deadlock; arrival_missing: deadlock; arrival_too_many: deadlock
      expect(full + 8 * stage, STAGE + (fault == TOO_MANY_BYTES ? 16 : fault == TOO_FEW_BYTES ? -2048 : 0));
      load(to, &map_a, full + 8 * stage, step * 64, 0);  // stage_back_early: early overwrite; no_stage_wait: early overwrite
      load(to + A_BYTES, &map_b, full + 8 * stage, step * 64, 0);
    }
    return;
  }
  float sum[8], total[8] = {};
  for (int step = 0; step < STEPS; ++step) {
    const u32 stage = step % STAGES, turn = step / STAGES % 2, at = base + stage * STAGE;
    if (fault == OVERWRITTEN && step == 1 && threadIdx.x == 0) *reinterpret_cast<u32*>(memory + STAGES * STAGE + 8) = 0;
    if (fault != NO_COPY_WAIT && (fault != ONE_WARP_WAITS || threadIdx.x < 32))
      wait(full + 8 * stage, turn);  // too_many_bytes: deadlock; overwritten: mbarrier
    if (fault != NO_WGMMA_FENCE && (fault != NO_FENCE_AGAIN || step == 0)) wgmma_fence();
    const u64 a = descriptor(fault == BEYOND ? at + 0x8000 : at), b = descriptor(at + A_BYTES);
    for (int part = 0; part < 4; ++part)
      wgmma(sum, a + part * 2, b + (fault == DIFFERENT && threadIdx.x >= 64 ? 2 : part * 2), part > 0);  // too_few_bytes: unfinished copy; no_wgmma_fence: missing fence; no_fence_again: missing fence; no_copy_wait: unfinished copy; one_warp_waits: unfinished copy; beyond: out of bounds; different: different products; never_waits: unfinished product
    wgmma_commit();
    if (fault == STAGE_BACK_EARLY && threadIdx.x == 0) arrive(empty + 8 * stage);
    if (fault == SUMS_WRITTEN) sum[0] = 0.0f;  // sums_written: unfinished product
    if (fault == SUMS_READ) total[0] += sum[0];  // sums_read: unfinished product
    if (fault != NEVER_WAITS) wgmma_wait<0>();
    if (fault != STAGE_BACK_EARLY && threadIdx.x == 0) arrive(empty + 8 * stage);
    if (fault == ARRIVAL_TOO_MANY && threadIdx.x == 0) arrive(empty + 8 * stage);
    for (int i = 0; i < 8; ++i) total[i] += sum[i];
  }
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int i = 0; i < 8; ++i) out[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = total[i];
}
#define MULTIPLY(NAME, FAULT)                                                                                 \
  extern "C" __global__ void __launch_bounds__(160) NAME(const __grid_constant__ TensorMap map_a,             \
                                                         const __grid_constant__ TensorMap map_b, float* out) { \
    multiply<FAULT>(map_a, map_b, out);                                                                       \
  }
// launch: multiply
MULTIPLY(right_multiply, NONE)
MULTIPLY(sums_read, SUMS_READ)
MULTIPLY(sums_written, SUMS_WRITTEN)
MULTIPLY(never_waits, NEVER_WAITS)
MULTIPLY(stage_back_early, STAGE_BACK_EARLY)
MULTIPLY(no_wgmma_fence, NO_WGMMA_FENCE)
MULTIPLY(no_fence_again, NO_FENCE_AGAIN)
MULTIPLY(wrong_parity, WRONG_PARITY)
MULTIPLY(too_many_bytes, TOO_MANY_BYTES)
MULTIPLY(too_few_bytes, TOO_FEW_BYTES)
MULTIPLY(arrival_missing, ARRIVAL_MISSING)
MULTIPLY(arrival_too_many, ARRIVAL_TOO_MANY)
MULTIPLY(no_init, NO_INIT)
MULTIPLY(no_copy_wait, NO_COPY_WAIT)
MULTIPLY(one_warp_waits, ONE_WARP_WAITS)
MULTIPLY(beyond, BEYOND)
MULTIPLY(different, DIFFERENT)
MULTIPLY(overwritten, OVERWRITTEN)
MULTIPLY(no_stage_wait, NO_STAGE_WAIT)

// What ordinary threads do with what copies bring and take: out [64][16 words] = in, row by row. Thread 0 copies.
#define KERNEL(NAME, THREADS) \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TensorMap map_in, const __grid_constant__ TensorMap map_out, int rows)
#define BEGIN(ARRIVALS)                                            \
  u32* words = reinterpret_cast<u32*>(memory);                     \
  const u32 base = address_of(memory), full = base + 8192, empty = full + 8; \
  if (threadIdx.x == 0) init(full, 1), init(empty, ARRIVALS), init_fence(); \
  __syncthreads();

// launch: copy
KERNEL(right_copy, 64) {
  BEGIN(2)
  for (int row = 0; row < rows; row += 8) {
    if (threadIdx.x == 0) {
      if (row > 0) wait(empty, (row / 8 - 1) % 2);
      expect(full, 512);
      load(base, &map_in, full, 0, row);
    }
    wait(full, row / 8 % 2);
    const u32 one = words[threadIdx.x], two = words[64 + threadIdx.x];
    __syncwarp();
    if (elect_one()) arrive(empty);
    if (threadIdx.x == 0) store_wait_read<0>();
    __syncthreads();
    words[256 + threadIdx.x] = one, words[256 + 64 + threadIdx.x] = two;
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) store(&map_out, base + 1024, 0, row), store_commit();
  }
  if (threadIdx.x == 0) store_wait_read<0>();
}
KERNEL(reads_at_once, 64) {
  BEGIN(1)
  if (threadIdx.x == 0) expect(full, 512), load(base, &map_in, full, 0, 0);
  __syncthreads();
  if (threadIdx.x < 32) wait(full, 0);
  words[256 + threadIdx.x] = words[threadIdx.x];  // reads_at_once: unfinished copy
  __syncthreads();
  wait(full, 0);
}
KERNEL(leaves_at_once, 64) {
  BEGIN(1)
  if (threadIdx.x == 0) expect(full, 512), load(base, &map_in, full, 0, 0);  // leaves_at_once: unfinished copy
}
KERNEL(copies_over_what_is_read, 64) {
  BEGIN(1)
  for (int row = 0; row < 16; row += 8) {
    if (threadIdx.x == 0) {
      if (row > 0) wait(empty, 0);
      expect(full, 512);
      load(base, &map_in, full, 0, row);  // copies_over_what_is_read: early overwrite
    }
    wait(full, row / 8);
    words[256 + threadIdx.x] = words[threadIdx.x];
    if (threadIdx.x == 63) arrive(empty);
  }
}
KERNEL(forgets_the_proxy_fence, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1, words[64 + threadIdx.x] = 2;
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, 0), store_commit(), store_wait_read<0>();  // forgets_the_proxy_fence: missing fence
}
KERNEL(one_thread_fences, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1, words[64 + threadIdx.x] = 2;
  if (threadIdx.x == 0) proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, 0), store_commit(), store_wait_read<0>();  // one_thread_fences: missing fence
}
KERNEL(writes_the_slab_again, 64) {
  BEGIN(1)
  for (int turn = 0; turn < 2; ++turn) {
    words[threadIdx.x] = turn, words[64 + threadIdx.x] = turn;  // writes_the_slab_again: early overwrite
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) store(&map_out, base, 0, 8 * turn), store_commit();
    __syncthreads();
  }
  if (threadIdx.x == 0) store_wait_read<0>();
}
KERNEL(waits_in_one_thread_only, 64) {
  BEGIN(1)
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 0) store_wait_read<0>();
    words[threadIdx.x] = turn, words[64 + threadIdx.x] = turn;  // waits_in_one_thread_only: early overwrite
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) store(&map_out, base, 0, 8 * turn), store_commit();
  }
  if (threadIdx.x == 0) store_wait_read<0>();
}
KERNEL(right_wait_for_a_warps_store, 64) {
  BEGIN(1)
  u32* own = words + threadIdx.x / 32 * 512;
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x % 32 == 0) store_wait_read<0>();
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 128; i += 32) own[i] = turn;
    proxy_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) store(&map_out, address_of(own), 0, 8 * (2 * turn + threadIdx.x / 32)), store_commit();
  }
  if (threadIdx.x % 32 == 0) store_wait_read<0>();
}
KERNEL(stores_what_nobody_wrote, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1;
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, 0), store_commit(), store_wait_read<0>();  // stores_what_nobody_wrote: uninitialised shared
}
KERNEL(leaves_its_store, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1, words[64 + threadIdx.x] = 2;
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, 0), store_commit();  // leaves_its_store: unfinished copy
}
KERNEL(two_blocks_store_one_tile, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1, words[64 + threadIdx.x] = 2;
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, 0), store_commit(), store_wait_read<0>();  // two_blocks_store_one_tile: block race
}
KERNEL(odd_column, 64) {
  BEGIN(1)
  if (threadIdx.x == 0) expect(full, 512), load(base, &map_in, full, 2, 0);  // odd_column: illegal instruction
  wait(full, 0);
}
KERNEL(odd_address, 64) {
  BEGIN(1)
  if (threadIdx.x == 0) expect(full, 512), load(base + 64, &map_in, full, 0, 0);  // odd_address: illegal instruction
  wait(full, 0);
}
KERNEL(stores_above_the_tensor, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1, words[64 + threadIdx.x] = 2;
  proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(&map_out, base, 0, -8), store_commit(), store_wait_read<0>();  // stores_above_the_tensor: illegal instruction
}
KERNEL(copies_beyond_its_memory, 64) {
  BEGIN(1)
  if (threadIdx.x == 0) expect(full, 512), load(base + 8192 - 128, &map_in, full, 0, 0);  // copies_beyond_its_memory: out of bounds
  wait(full, 0);
}
KERNEL(passes_the_map_by_pointer, 64) {
  BEGIN(1)
  TensorMap own = {};
  if (threadIdx.x == 0) expect(full, 512), load(base, &own, full, 0, 0);  // passes_the_map_by_pointer: illegal instruction
  wait(full, 0);
}
KERNEL(too_few_at_a_barrier, 64) {
  BEGIN(1)
  words[threadIdx.x] = 1;
  if (threadIdx.x < 32) named_barrier(1, 64);  // too_few_at_a_barrier: deadlock
}
KERNEL(races_past_a_barrier_of_others, 96) {
  BEGIN(1)
  words[threadIdx.x] = 1;
  if (threadIdx.x < 64) named_barrier(1, 64);
  if (threadIdx.x < 64) words[128 + threadIdx.x] = words[95 - threadIdx.x];  // races_past_a_barrier_of_others: shared race
}
KERNEL(right_barrier_of_two_warps, 96) {
  BEGIN(1)
  words[threadIdx.x] = 1;
  if (threadIdx.x < 64) named_barrier(1, 64);
  if (threadIdx.x < 64) words[128 + threadIdx.x] = words[63 - threadIdx.x];
}
KERNEL(asks_for_too_many_registers, 384) {
  BEGIN(1)
  registers<240>();  // asks_for_too_many_registers: deadlock
}

// Pairs of blocks: what one does to the other's memory.
// launch: pair
KERNEL(right_pair, 64) {
  BEGIN(2)
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) expect(full, 1024), load_for_both(base + cluster_rank() * 512, &map_in, full, 0, cluster_rank() * 8);
  wait(full, 0);
  words[512 + threadIdx.x] = words[threadIdx.x] + words[128 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) arrive_at(empty, 0), arrive_at(empty, 1);
  wait(empty, 0);
  cluster_arrive();
  cluster_wait();
}
KERNEL(leaves_its_cluster, 64) {
  BEGIN(1)
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 1 && threadIdx.x == 0) arrive_at(empty, 0);  // leaves_its_cluster: cluster exit
}
KERNEL(leaves_before_a_multicast, 64) {
  BEGIN(1)
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 0) return;
  if (threadIdx.x == 0) expect(full, 512), load_for_both(base, &map_in, full, 0, 0);  // leaves_before_a_multicast: cluster exit
  wait(full, 0);
}
KERNEL(one_block_waits_for_the_cluster, 64) {
  BEGIN(1)
  if (cluster_rank() == 1) wait(full, 0);  // one_block_waits_for_the_cluster: deadlock
  cluster_arrive();
  cluster_wait();
}

// Two launches, of which the second may start before the first has ended: what that has written needs a wait.
#define DEPENDENT(NAME, THREADS) extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* x, float* partial, float* out)
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
// launch: dependent
DEPENDENT(right_dependent, 64) {
  const float own = x[threadIdx.x];  // a launch ahead reads it, too
  WAIT;
  out[threadIdx.x] = own + partial[threadIdx.x];
  partial[threadIdx.x] = own;
}
DEPENDENT(reads_before_its_wait, 64) {
  const float early = partial[threadIdx.x];  // reads_before_its_wait: missing wait
  WAIT;
  out[threadIdx.x] = early;
}
DEPENDENT(writes_before_its_wait, 64) {
  out[threadIdx.x] = x[threadIdx.x];  // writes_before_its_wait: missing wait
  WAIT;
  partial[threadIdx.x] += out[threadIdx.x];
}
