// Empty: the forced include cuda_cpu.hpp declares everything that kernels take from this header of the toolkit.
#pragma once

// A launch passes a tensor map by value: opb_tensor_map of opbench_cpu/abi.hpp.
struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
