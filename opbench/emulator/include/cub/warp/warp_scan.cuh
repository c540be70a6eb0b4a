#pragma once
#include "../../opbench_cpu/collectives.hpp"
