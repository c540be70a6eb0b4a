// Instructions as functions, in the manner of public kernels: loops and predicates inside of the asm block.
#pragma once
typedef unsigned u32;
typedef unsigned long long u64;
struct __align__(64) TensorMap {
  u64 opaque[16];
};
#define INSTRUCTION __device__ __forceinline__

INSTRUCTION u32 address_of(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

INSTRUCTION void init(u32 bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(arrivals));
}
INSTRUCTION void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
INSTRUCTION void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes));
}
INSTRUCTION void arrive(u32 bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
INSTRUCTION void wait(u32 bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(bar), "r"(parity) : "memory");
}
INSTRUCTION void arrive_at(u32 bar, u32 rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(bar), "r"(rank));
}

INSTRUCTION void load(u32 to, const TensorMap* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(to),
      "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
}
INSTRUCTION void load_for_both(u32 to, const TensorMap* map, u32 bar, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(reinterpret_cast<u64>(map)), "r"(bar), "h"((unsigned short)3), "r"(x), "r"(y)
      : "memory");
}
INSTRUCTION void store(const TensorMap* map, u32 from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(x), "r"(y)
               : "memory");
}
INSTRUCTION void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N>
INSTRUCTION void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
INSTRUCTION void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

INSTRUCTION void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory"); }
INSTRUCTION void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }
INSTRUCTION u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank) :);
  return rank;
}
INSTRUCTION void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
template <int N>
INSTRUCTION void registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" : : "n"(N));
}

INSTRUCTION void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
INSTRUCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int N>
INSTRUCTION void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
// 128-byte swizzle, rows of 128 bytes: the next 8 are 1024 bytes away.
INSTRUCTION u64 descriptor(u32 address) { return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }
// d (64 x 16) = a (64 x 16) * b (16 x 16) + (add ? d : 0)
INSTRUCTION void wgmma(float (&d)[8], u64 a, u64 b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0,  %1,  %2,  %3,  %4,  %5,  %6,  %7}, %8, %9, p, %11, %12, %13, %14;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b), "r"(add), "n"(1), "n"(1), "n"(0), "n"(0));
}
INSTRUCTION bool elect_one() {
  u32 elected = 0, lane = 0;
  asm volatile(
      "{\n"
      ".reg .b32 %%rx;\n"
      ".reg .pred %%px;\n"
      "     elect.sync %%rx|%%px, %2;\n"
      "@%%px mov.s32 %1, 1;\n"
      "     mov.s32 %0, %%rx;\n"
      "}\n"
      : "+r"(lane), "+r"(elected) : "r"(0xFFFFFFFF));
  return elected;
}
