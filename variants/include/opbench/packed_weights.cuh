// 4-bit weights, two in a byte, as pairs of bf16 numbers.
#pragma once
#include <cuda_bf16.h>

namespace opbench {

// Return the selector of byte `at` (0 to 3) of a word.
__device__ __forceinline__ constexpr unsigned select_byte(int at) { return at | (4 + at) << 8; }

// Return two weights as bf16: the lower and the upper four bits of a byte of `word`, minus 8. The bits become mantissa
// bits of 128, and 136 is subtracted; both steps are exact.
__device__ __forceinline__ unsigned two_weights(unsigned word, unsigned select) {
    const unsigned spread = __byte_perm(word, word >> 4, select) & 0x000f000fu | 0x43004300u;  // 128 + weight
    const __nv_bfloat162 less = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&spread),
                                        __nv_bfloat162(__float2bfloat16(136.0f), __float2bfloat16(136.0f)));
    return *reinterpret_cast<const unsigned*>(&less);
}

}  // namespace opbench
