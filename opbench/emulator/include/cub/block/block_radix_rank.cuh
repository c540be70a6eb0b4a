#pragma once
#include "../../opbench_cpu/ranking.hpp"
