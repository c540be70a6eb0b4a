// Kernels use only the primitives of this header.
#pragma once
#include "cuda_pipeline_primitives.h"
