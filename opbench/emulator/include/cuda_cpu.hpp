// Forced include that makes an unchanged .cu file valid C++17 for g++ and clang.
#pragma once
#define OPB_MACROS_SHOWN 1  // macros.py hides the host's macros behind this header
#include <cstddef>
// <cmath> in C++17 brings the special functions and half of the library with them: a third of a kernel's compile time.
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// CUDA's clock() differs from libc's, which a standard header may declare later.
#define clock opb_clock_of_libc
#include <time.h>
#undef clock
#include <assert.h>

#include "opbench_cpu/abi.hpp"
#include "opbench_cpu/keywords.hpp"
#include "opbench_cpu/copies.hpp"
#include "opbench_cpu/vectors.hpp"
#include "opbench_cpu/warp.hpp"
#include "opbench_cpu/atomics.hpp"
#include "opbench_cpu/mathematics.hpp"
#include "opbench_cpu/intrinsics.hpp"
#include "opbench_cpu/ptx.hpp"
#include "opbench_cpu/textures.hpp"
#include "opbench_cpu/entry.hpp"
