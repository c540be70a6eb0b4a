// Everything that this header of the toolkit declares for kernels is in the forced include already.
#pragma once
