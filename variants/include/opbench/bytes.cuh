// The 8-bit types of two operands, which tensor cores multiply 32 bytes of k at a time.
#pragma once

namespace opbench {

// a and b, in this order; one name if both have the same type.
enum class Bytes { e4m3, e5m2, e4m3_e5m2, e5m2_e4m3, s8 };

__host__ __device__ constexpr Bytes float_bytes(bool a_e5m2, bool b_e5m2) {
    return a_e5m2 ? b_e5m2 ? Bytes::e5m2 : Bytes::e5m2_e4m3 : b_e5m2 ? Bytes::e4m3_e5m2 : Bytes::e4m3;
}

}  // namespace opbench
