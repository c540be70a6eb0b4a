// Empty: the forced include cuda_cpu.hpp declares everything that kernels take from this header of the toolkit.
#pragma once
