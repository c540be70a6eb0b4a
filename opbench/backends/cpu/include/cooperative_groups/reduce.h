// cooperative_groups::reduce is in the main header.
#pragma once
#include "../cooperative_groups.h"
