// Hopper synchronisation: barriers in shared memory (mbarrier), clusters of blocks, named barriers, and setmaxnreg that
// moves registers between warpgroups. All addresses of shared memory are 32 bits wide.
#pragma once

#include <opbench/overlap.cuh>

namespace opbench {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// An mbarrier is 8 bytes. A phase completes after `count` arrivals and after all expected bytes have been copied; then
// the next phase begins. A new barrier is in phase 0.
__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Call in the thread that initialised the barriers, before the threads of the block (or cluster) synchronise.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrive and add the bytes that copies will write (expect_tx): whole boxes, even if a copy is clipped at the edge.
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
// Wait until the phase of this parity has completed; on a new barrier, the phase of parity 1 counts as completed. Never
// wait two phases ahead of the current one, because a parity only distinguishes odd and even phases.
__device__ __forceinline__ void wait_for(unsigned barrier, unsigned parity) {
    while (!try_wait(barrier, parity)) {}
}

// ---- clusters
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Return the address of the same location of shared memory in another block of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned address, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
// Arrive on a barrier of another block. The arrival has no `.release.cluster`, which acts as a fence of the whole GPU
// and takes a quarter of the kernel's time: wgmma has finished reading the released stage, so there is nothing to
// order.
__device__ __forceinline__ void arrive_remote(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ float load_remote(unsigned address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}
__device__ __forceinline__ float4 load_remote_float4(unsigned address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
// The former names of these functions.
__device__ __forceinline__ void arrive_there(unsigned barrier) { arrive_remote(barrier); }
__device__ __forceinline__ float load_there(unsigned address) { return load_remote(address); }
__device__ __forceinline__ float4 load_four_there(unsigned address) { return load_remote_float4(address); }
// Copy bytes of this block to another block, a multiple of 16, counted on a barrier of the other block.
__device__ __forceinline__ void send(unsigned to, unsigned from, unsigned bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// Synchronise all threads of the cluster: before the first access to another block, and before a block exits while
// other blocks may still write to its shared memory.
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

// ---- named barriers 1 to 15: synchronise some warps of a block
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Arrive without waiting: `threads` counts those that arrive and those that wait.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- fence.proxy.async: make ordinary stores to shared memory visible to bulk copies and wgmma. Every thread that
// wrote executes the fence before the barrier that precedes the copy or wgmma.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers: a launch gives every thread the same number; a warpgroup (128 threads) that only copies needs few.
// The kernel's __launch_bounds__ must state one block per multiprocessor, or ptxas ignores setmaxnreg.
template <int count>
__device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace opbench
