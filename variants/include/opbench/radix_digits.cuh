// Parts of a radix sort by digits of 8 bits: codes of keys, lanes with the same digit, and sums over digits.
#pragma once

namespace opbench {

// Return the element as an unsigned number with the same order; all NaNs have one code, after that of infinity.
template <bool integers>
__device__ __forceinline__ unsigned to_ordered_bits(unsigned bits) {
    if (integers) return bits ^ 0x80000000u;
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
template <bool integers>
__device__ __forceinline__ unsigned from_ordered_bits(unsigned code) {
    if (integers) return code ^ 0x80000000u;
    return (code >> 31) != 0 ? code & 0x7fffffffu : ~code;
}

// Hide from the compiler how a number was computed.
__device__ __forceinline__ unsigned opaque(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Return the lanes of the warp that have the same digit as this lane; the digit is the eight bits of the key from
// `shift` on.
__device__ __forceinline__ unsigned lanes_with(unsigned key, int shift) {
    unsigned lanes = 0xffffffffu;
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
        const unsigned lane_bit = opaque(key & 1u << (shift + bit));  // otherwise the compiler would test the bit twice
        const unsigned lanes_with_one = __ballot_sync(0xffffffffu, lane_bit != 0);
        lanes &= lane_bit != 0 ? lanes_with_one : ~lanes_with_one;
    }
    return lanes;
}

// Return the sum of the values of all previous threads, among the first `digits` of a block; all threads take part.
template <int digits>
__device__ __forceinline__ int sum_before(int value, int* warp_sums) {
    const int lane = threadIdx.x % 32;
    int sum = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane >= distance) sum += other;
    }
    if (lane == 31 && threadIdx.x < digits) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    int before = sum - value;
    for (int warp = 0; warp < digits / 32; ++warp)
        if (warp < threadIdx.x / 32) before += warp_sums[warp];
    __syncthreads();
    return before;
}

}  // namespace opbench
