// Overlapping launches (programmatic dependent launch, `programmatic = true`), on GPUs that have them (compute
// capability 9.0). On other GPUs, launches run in order and these functions do nothing. In a chain of kernels, every
// thread that reads or writes shared data must wait; otherwise a kernel may overtake the one two launches before it.
// Pointers to data that are read after the wait must not be `const __restrict__`.
#pragma once

namespace opbench {

// Wait until all previous launches have ended and their writes are visible.
__device__ __forceinline__ void wait_for_launches_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allow the next launch's blocks to start once all blocks of this launch have started and as resources become free.
__device__ __forceinline__ void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Before the wait: prefetch `bytes` from `from` on into L2; no launch may write these bytes. Each of the `shares`
// blocks that need them requests its own share.
__device__ __forceinline__ void fetch_ahead(const void* from, size_t bytes, unsigned share, unsigned shares) {
#if __CUDA_ARCH__ >= 900
    for (size_t at = (share * blockDim.x + threadIdx.x) * 128u; at < bytes; at += shares * blockDim.x * 128u)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + at));
#endif
}

}  // namespace opbench
