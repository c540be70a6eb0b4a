// Includes the block-wide and warp-wide parts of CUB.
#pragma once
#include "../opbench_cpu/ranking.hpp"
