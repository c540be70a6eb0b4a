// Declares the names of CUDA's bfloat16 header with the types of opbench_cpu/float16.hpp.
#pragma once
#include "opbench_cpu/float16.hpp"

using __nv_bfloat16 = opb_float16<opb_bfloat_format>;
using __nv_bfloat162 = opb_float16x2<opb_bfloat_format>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 a) { return a; }
static inline __nv_bfloat16 __float2bfloat16(float a) { return a; }
static inline __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
static inline __nv_bfloat16 __double2bfloat16(double a) { return a; }
static inline __nv_bfloat16 __int2bfloat16_rn(int a) { return a; }
static inline __nv_bfloat16 __uint2bfloat16_rn(unsigned a) { return a; }
static inline int __bfloat162int_rn(__nv_bfloat16 a) { return __float2int_rn(a); }
static inline int __bfloat162int_rz(__nv_bfloat16 a) { return __float2int_rz(a); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.bits; }
static inline short __bfloat16_as_short(__nv_bfloat16 a) { return (short)a.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16::from_bits(bits); }
static inline __nv_bfloat16 __short_as_bfloat16(short bits) { return __nv_bfloat16::from_bits((unsigned short)bits); }

static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
static inline __nv_bfloat162 __float2bfloat162_rn(float a) { return {a, a}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {a.x, a.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
static inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a) { return {a.x, a.x}; }
static inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a) { return {a.y, a.y}; }
