// What kernels take of it are its primitives.
#pragma once
#include "cuda_pipeline_primitives.h"
