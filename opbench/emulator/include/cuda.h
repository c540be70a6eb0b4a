// Everything that this header of the toolkit declares for kernels is in the forced include already.
#pragma once

// What a launch passes by value: opb_tensor_map of opbench_cpu/abi.hpp.
struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
