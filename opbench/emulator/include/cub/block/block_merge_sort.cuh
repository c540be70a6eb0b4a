#pragma once
#include "../../opbench_cpu/sorting.hpp"
