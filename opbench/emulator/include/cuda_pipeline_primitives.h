// Implements the pipeline primitives of CUDA C++: cp.async and its groups under other names.
#pragma once
#include "cuda_cpu.hpp"

OPB_INSTRUCTION void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                             const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes) {
    opb_trap("__pipeline_memcpy_async of a size that is not 4, 8 or 16, or with more zeros than bytes", file, line);
  }
  ::opb_ptx::copy_async<16>(__cvta_generic_to_shared(to), (unsigned long long)from, (unsigned)bytes,
                            (unsigned)(bytes - zeros), file, line);
}
OPB_INSTRUCTION void __pipeline_commit() { ::opb_ptx::cp_async_commit_group(); }
OPB_INSTRUCTION void __pipeline_wait_prior(size_t pending) { ::opb_ptx::cp_async_wait_group((int)pending); }
