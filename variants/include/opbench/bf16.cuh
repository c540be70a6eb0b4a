// bf16 as bits: two numbers in a register, and their conversion to floats.
#pragma once

namespace opbench {

// Round two floats to bf16; `low` is in the lower half of the register.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(unsigned short bf16_bits) { return __uint_as_float((unsigned)bf16_bits << 16); }

}  // namespace opbench
