// Who waits for whom on Hopper: barriers in shared memory (mbarrier), clusters of blocks, and the
// registers that warpgroups trade. Addresses of shared memory are 32 bits wide throughout.
#pragma once

#include <opbench/overlap.cuh>

namespace opbench {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// A barrier is 8 bytes. Its phase ends when `count` arrivals have come and all bytes that were expected have landed;
// then the next one begins. A fresh barrier is in phase 0.
__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// By whoever initialised barriers, before the block's (or the cluster's) threads meet.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and says how many bytes copies are to bring: whole boxes, even where they are clipped.
__device__ __forceinline__ void arrive_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool try_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}
// Until the phase of this parity has ended; on a fresh barrier that of parity 1 counts as ended. Never two phases away
// from the one that is under way: a parity says no more than odd and even.
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    while (!try_wait(barrier, parity)) {}
}

// ---- clusters
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// The same place of shared memory in another block of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned address, unsigned rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// On a barrier of another block. Without `.release.cluster`, which would be a fence of the whole GPU at each arrival
// and cost a quarter of the kernel: what it gives back was read by wgmma and waited for, so that there is nothing to
// order.
__device__ __forceinline__ void arrive_there(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ float load_there(unsigned address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}
// Bytes of this block to another, a multiple of 16, counted on a barrier of the other's.
__device__ __forceinline__ void send(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// All threads of the cluster: before the first access to another block, and before leaving where others may still
// write.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
template <int blocks>
__device__ __forceinline__ void sync_blocks() {
    if constexpr (blocks > 1)
        cluster_sync();
    else
        __syncthreads();
}

// ---- some warps of a block: a barrier of their own, of 1 to 15
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- what ordinary stores wrote to shared memory becomes visible to copies and wgmma: by every thread that wrote,
// before the barrier behind which those run
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers: a launch gives every thread the same number; a warpgroup (128 threads) that copies needs few. The
// kernel's __launch_bounds__ say one block a multiprocessor, or ptxas ignores both.
template <int count>
__device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace opbench
