// Launches that overlap (`programmatic = true`), on GPUs that can (9.0); elsewhere they follow each other and these do
// nothing. Every kernel of a chain waits, all of its threads that read or write what others do, or order is lost two
// kernels on. What is read behind the wait is no `const __restrict__`: such loads may be moved ahead of it.
#pragma once

namespace opbench {

// Until all launches before this one have ended and what they wrote is there.
__device__ __forceinline__ void wait_for_launches_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next launch's blocks may take the places that this one's leave, once all of these have begun.
__device__ __forceinline__ void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Ahead of the wait: `bytes` from `from` on, which no launch writes, come into L2 meanwhile; of `shares` blocks that
// need them each asks for its own share.
__device__ __forceinline__ void fetch_ahead(const void* from, size_t bytes, unsigned share, unsigned shares) {
#if __CUDA_ARCH__ >= 900
    for (size_t at = (share * blockDim.x + threadIdx.x) * 128u; at < bytes; at += shares * blockDim.x * 128u)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + at));
#endif
}

}  // namespace opbench
