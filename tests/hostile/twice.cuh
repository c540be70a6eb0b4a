#include "twice.cuh"
#include "twice.cuh"
