// Instructions that whole kernels rarely show: copies without a map, states of barriers, stores into other blocks, 8-bit
// products, and the small change of blocks. One kernel a family, each of 128 threads.
#include <cooperative_groups.h>
extern __shared__ __align__(1024) unsigned char memory[];
__device__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }
#define SETUP(COUNT)                                                                                  \
  __shared__ unsigned long long barrier;                                                              \
  float* staged = reinterpret_cast<float*>(memory);                                                   \
  const unsigned bar = shared_address(&barrier), base = shared_address(memory);                       \
  const int t = threadIdx.x;                                                                          \
  if (t == 0) {                                                                                       \
    asm volatile("mbarrier.init.b64 [%0], %1;" ::"l"(&barrier), "r"(COUNT) : "memory");               \
    asm volatile("fence.proxy.async;" ::: "memory");                                                  \
  }                                                                                                   \
  __syncthreads();

// y = 2 x, total += x: bulk copies of plain memory both ways, and a reduction.
extern "C" __global__ void plain_bulk(const float* x, float* y, float* total) {
  SETUP(1)
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" ::"r"(bar) : "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], 512;" ::"l"(x));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(base),
                 "l"(x + blockIdx.x * 128), "r"(512), "r"(bar) : "memory");
  }
  asm volatile(
      "{\n.reg .pred ready;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 ready, [%0], 0;\n@!ready bra again;\n}" ::"r"(bar)
      : "memory");
  staged[128 + t] = 2.0f * staged[t];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0)
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%2], [%3], 512;\n"
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n" ::"l"(y + blockIdx.x * 128),
        "r"(base + 512), "l"(total), "r"(base) : "memory");
}

// y[i] = x[127 - i]: every thread's own cp.async reports to a barrier; the wait is for a state, not a parity.
extern "C" __global__ void states(const float* x, float* y) {
  SETUP(256)
  unsigned long long state;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(base + 4 * t), "l"(x + t) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
  unsigned over = 0;
  while (!over)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(bar), "l"(state) : "memory");
  y[t] = staged[127 - t];
}

// Pairs of blocks: each sends its number and halves of x to the other, by every door there is.
extern "C" __global__ void pairs(const float* x, float* y) {
  SETUP(1)
  unsigned rank, there, there_bar;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const unsigned other = rank ^ 1;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(base), "r"(other));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there_bar) : "r"(bar), "r"(other));
  if (t == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(bar) : "memory");
  staged[256 + t] = 0.0f;
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
  const float own = x[blockIdx.x * 128 + t];
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there + 4 * t),
               "r"(__float_as_uint(own)), "r"(there_bar) : "memory");
  asm volatile("st.shared::cluster.f32 [%0+512], %1;" ::"r"(there + 4 * t), "f"(own + 1.0f) : "memory");
  unsigned old;
  asm volatile("atom.shared::cluster.add.u32 %0, [%1+1024], 1;" : "=r"(old) : "r"(there) : "memory");
  asm volatile(
      "{\n.reg .pred ready;\nagain:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ready, [%0], 0;\n@!ready bra again;\n}" ::"r"(bar)
      : "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  unsigned long long generic;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(staged + 128), "r"(rank));
  unsigned whose;
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(whose) : "r"(there));
  y[blockIdx.x * 128 + t] = staged[t] + reinterpret_cast<float*>(generic)[t] + (whose == other ? 0.0f : 1e6f) +
                            (t == 0 ? (float)reinterpret_cast<unsigned*>(memory)[256] : 0.0f);
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// y of the other block, through cooperative groups.
extern "C" __global__ void groups(const float* x, float* y) {
  __shared__ float own[128];
  cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  own[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
  cluster.sync();
  const float* other = cluster.map_shared_rank(own, cluster.block_rank() ^ 1);
  y[blockIdx.x * 128 + threadIdx.x] = other[threadIdx.x] + cluster.num_blocks();
  cluster.sync();
}

// y [64][8] = a [64][32] . b [8][32], both of 8-bit floats; registers one by one, in an order of their own.
extern "C" __global__ void small_floats(const unsigned* a, const unsigned* b, float* y) {
  unsigned* words = reinterpret_cast<unsigned*>(memory);
  for (int i = threadIdx.x; i < 512; i += 128) words[i] = a[i];
  if (threadIdx.x < 64) words[512 + threadIdx.x] = b[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned base = shared_address(memory);
  auto matrix = [](unsigned at) { return (unsigned long long)(at >> 4) | (unsigned long long)16 << 32 | 3ull << 62; };
  float low_second = 0.0f, high_first = 0.0f, low_first = 0.0f, high_second = 0.0f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, 1, 1, -1;"
               : "+f"(low_first), "+f"(low_second), "+f"(high_first), "+f"(high_second) : "l"(matrix(base)), "l"(matrix(base + 2048)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  y[row * 8 + column] = low_first, y[row * 8 + column + 1] = low_second;
  y[(row + 8) * 8 + column] = high_first, y[(row + 8) * 8 + column + 1] = high_second;
}

// y [64][16] += steps times a [64][32] . b [16][32], all of whole numbers: a and b of 8 bits.
extern "C" __global__ void whole_numbers(const unsigned* a, const unsigned* b, int* y, int steps) {
  unsigned* words = reinterpret_cast<unsigned*>(memory);
  for (int i = threadIdx.x; i < 512; i += 128) words[i] = a[i];
  words[512 + threadIdx.x] = b[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned base = shared_address(memory);
  auto matrix = [](unsigned at) { return (unsigned long long)(at >> 4) | (unsigned long long)16 << 32 | 3ull << 62; };
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  int sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = y[(row + i / 2 % 2 * 8) * 16 + column + i / 4 * 8 + i % 2];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int step = 0; step < steps; ++step)
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1;"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3]), "+r"(sums[4]), "+r"(sums[5]),
                   "+r"(sums[6]), "+r"(sums[7]) : "l"(matrix(base)), "l"(matrix(base + 2048)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 8; ++i) y[(row + i / 2 % 2 * 8) * 16 + column + i / 4 * 8 + i % 2] = sums[i];
}

// y [64][8] = 1 + a [64][16] . b [8][16] in f16, the sums too: two in a register.
extern "C" __global__ void half_sums(const unsigned* a, const unsigned* b, float* y) {
  unsigned* words = reinterpret_cast<unsigned*>(memory);
  for (int i = threadIdx.x; i < 512; i += 128) words[i] = a[i];
  if (threadIdx.x < 64) words[512 + threadIdx.x] = b[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const unsigned base = shared_address(memory);
  auto matrix = [](unsigned at) { return (unsigned long long)(at >> 4) | (unsigned long long)16 << 32 | 3ull << 62; };
  unsigned sums[2] = {0x3c003c00, 0x3c003c00};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0, %1}, %2, %3, 1, 1, 1, 0, 0;"
               : "+r"(sums[0]), "+r"(sums[1]) : "l"(matrix(base)), "l"(matrix(base + 2048)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const unsigned short half = (unsigned short)(sums[i / 2] >> i % 2 * 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(y[(row + i / 2 * 8) * 8 + column + i % 2]) : "h"(half));
  }
}

// Scopes, parameterised registers, loops and predicates in one block: how many bits of x are set, and x's halves swapped.
extern "C" __global__ void blocks(const unsigned* x, unsigned* bits, unsigned* swapped) {
  const unsigned value = x[threadIdx.x];
  unsigned count;
  asm volatile(
      "{\n"
      "  .reg .b32 r<3>;           // rest, lowest bit, count\n"
      "  .reg .pred more, odd;\n"
      "  mov.b32 r0, %1;\n"
      "  mov.u32 r2, 0;\n"
      "loop:\n"
      "  and.b32 r1, r0, 1;\n"
      "  setp.ne.u32 odd, r1, 0;\n"
      "  { .reg .u32 one; mov.u32 one, 1; @odd add.u32 r2, r2, one; }\n"
      "  shr.u32 r0, r0, 1;\n"
      "  setp.ne.u32 more, r0, 0;\n"
      "  @more bra loop;\n"
      "  mov.b32 %0, r2;\n"
      "}"
      : "=r"(count) : "r"(value));
  bits[threadIdx.x] = count;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, low}; }" : "=r"(swapped[threadIdx.x]) : "r"(value));
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
}
