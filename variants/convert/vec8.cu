// /// opbench
// title     = "eight elements per thread: two 16-byte accesses for f32, one for bf16"
// builds_on = "scalar"
// mechanism = ["vectorised_access"]
// tune      = { BLOCK = [256, 128, 512] }
// define    = { NARROW = "to == 'bf16'" }
// supports  = { to = ["bf16", "f32"] }
//
// [[launch]]
// kernel = "convert_vec8"
// grid   = ["cdiv(cdiv(n, 8), BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// Every access moves 16 bytes per lane. Reading float32, a full multiprocessor has 64 KB in flight, reading bf16 32 KB.
// One instruction rounds a pair of elements. The two accesses of a thread to float32 are 16 bytes apart and those of
// neighbouring threads 32 bytes, so each instruction uses half of every sector. Limit: HBM.
#include <cuda_bf16.h>

extern "C" __global__ void __launch_bounds__(BLOCK)
#if NARROW
    convert_vec8(const float* __restrict__ x, __nv_bfloat16* __restrict__ out, int n) {
#else
    convert_vec8(const __nv_bfloat16* __restrict__ x, float* __restrict__ out, int n) {
#endif
    // x, out [n], both aligned to 16 bytes
    const unsigned i = blockIdx.x * BLOCK + threadIdx.x, whole = (unsigned)n / 8;
    if (i < whole) {
#if NARROW
        const float4* source = reinterpret_cast<const float4*>(x) + 2 * (size_t)i;
        const float4 first = source[0], second = source[1];
        const __nv_bfloat162 pairs[4] = {
            __floats2bfloat162_rn(first.x, first.y), __floats2bfloat162_rn(first.z, first.w),
            __floats2bfloat162_rn(second.x, second.y), __floats2bfloat162_rn(second.z, second.w)};
        uint4 words;
        words.x = *reinterpret_cast<const unsigned*>(&pairs[0]);
        words.y = *reinterpret_cast<const unsigned*>(&pairs[1]);
        words.z = *reinterpret_cast<const unsigned*>(&pairs[2]);
        words.w = *reinterpret_cast<const unsigned*>(&pairs[3]);
        reinterpret_cast<uint4*>(out)[i] = words;
#else
        const uint4 words = reinterpret_cast<const uint4*>(x)[i];
        float4* target = reinterpret_cast<float4*>(out) + 2 * (size_t)i;
        // A bf16 is the upper half of a float.
        target[0] = make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                                __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u));
        target[1] = make_float4(__uint_as_float(words.z << 16), __uint_as_float(words.z & 0xffff0000u),
                                __uint_as_float(words.w << 16), __uint_as_float(words.w & 0xffff0000u));
#endif
    }
    if (blockIdx.x == 0 && threadIdx.x < 8 && 8 * whole + threadIdx.x < (unsigned)n) {
        const unsigned rest = 8 * whole + threadIdx.x;
#if NARROW
        out[rest] = __float2bfloat16(x[rest]);
#else
        out[rest] = __bfloat162float(x[rest]);
#endif
    }
}
