// /// opbench
// operator = "relu"
// launch = [{ kernel = "k", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
#include <cuda_fp16.h>
#include <math_constants.h>

#include <cstdint>
#include <cstdio>
__device__ __constant__ int table[2] = {1, 2};
__device__ bool instructions(unsigned x) {
    int s;
    unsigned u, v;
    unsigned long long wide;
    float f;
    bool right = true;
    asm("add.s32 %0, %1, %2;" : "=r"(s) : "r"(x), "r"(-8));
    right = right && s == -1;
    asm("{ .reg .pred p; setp.ne.u32 p, %1, 0; selp.u32 %0, 5, 6, p; }" : "=r"(u) : "r"(x));
    right = right && u == 5;
    asm("mad.lo.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(x), "r"(-2), "r"(3));
    right = right && s == -11;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(u) : "r"(0xabcd), "r"(4), "r"(8));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(s) : "r"(0xabcd), "r"(8), "r"(8));
    right = right && u == 0xbc && s == (int)0xffffffab;
    asm("bfi.b32 %0, %1, %2, 4, 8;" : "=r"(u) : "r"(0xff), "r"(0));
    right = right && u == 0xff0;
    asm("popc.b32 %0, %1;" : "=r"(u) : "r"(0xf0f));
    asm("clz.b32 %0, %1;" : "=r"(v) : "r"(x));
    right = right && u == 8 && v == 29;
    asm("bfind.u32 %0, %1;" : "=r"(v) : "r"(x));
    right = right && v == 2;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(wide));
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(u) : "r"(x), "r"(3), "r"(0x10));
    right = right && u == (7 ^ 3 ^ 0x10);
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(wide) : "r"(0xffffffffu), "r"(x));
    right = right && wide == 7ull * 0xffffffffu;
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(u) : "r"(0xffffffffu), "r"(x));
    asm("mul.hi.s32 %0, %1, %2;" : "=r"(s) : "r"(-1), "r"(x));
    right = right && u == 6 && s == -1;
    asm("shr.s32 %0, %1, 40;" : "=r"(s) : "r"(-5));
    asm("min.s32 %0, %1, %2;" : "=r"(u) : "r"(x), "r"(-3));
    right = right && s == -1 && (int)u == -3;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(f) : "f"(2.0f), "f"(3.0f), "f"(0.5f));
    right = right && f == 6.5f;
    asm("cvt.rn.f32.s32 %0, %1;" : "=f"(f) : "r"(-4));
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(s) : "f"(-2.7f));
    right = right && f == -4.0f && s == -2;
    asm("{\n\tadd.f16x2 %0, %1, %2;\n\t}" : "=r"(u) : "r"(0x3c003c00), "r"(0x40003c00));
    return right && u == 0x42004000;  // 1 + 1 and 1 + 2
}
__device__ bool intrinsics() {
    return umin(3u, 4u) == 3 && umax(1u, 2u) == 2 && llmin(3ll, -4ll) == -4 && __usad(1, 2, 3) == 4 &&
           __vadd4(0xff01ff01u, 0x01010101u) == 0x00020002u && __vabsdiffu4(0x05u, 0x07u) == 2 &&
           __vmaxs4(0x80u, 0x01u) == 1 && __fmul_rz(0.1f, 0.1f) <= __fmul_ru(0.1f, 0.1f) &&
           __fadd_rd(1.0f, 1e-10f) == 1.0f && __fadd_ru(1.0f, 1e-10f) > 1.0f &&
           __int2float_rz(16777217) == 16777216.0f && __dp4a(0x01020304u, 0x01010101u, 1u) == 11 &&
           __dp4a(-1, 0x01, 0) == -1 && fabsf(erfinvf(0.5f) - 0.4769363f) < 1e-6f &&
           fabsf(norm3df(1.0f, 2.0f, 2.0f) - 3.0f) < 1e-6f && fabsf(exp10f(2.0f) - 100.0f) < 1e-3f && table[1] == 2 &&
           isinf(CUDART_INF_F) && __half2float(__hadd(__float2half(1.5f), __float2half(2.0f))) == 3.5f;
}
__global__ void k(const float* __restrict__ x, float* __restrict__ out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (n < 0) printf("never %d\n", i);
    if (i < n) out[i] = instructions(7) && intrinsics() ? fmaxf(x[i], 0.0f) : INFINITY;
}
