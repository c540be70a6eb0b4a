// The parts of CUB that a block or a warp does together.
#pragma once
#include "../opbench_cpu/ranking.hpp"
