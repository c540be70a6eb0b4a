// Declares the names of CUDA's half-precision header with the types of opbench_cpu/float16.hpp.
#pragma once
#include "opbench_cpu/float16.hpp"

using __half = opb_float16<opb_half_format>;
using __half2 = opb_float16x2<opb_half_format>;
using half = __half;
using half2 = __half2;
using __half_raw = unsigned short;

static inline float __half2float(__half a) { return a; }
static inline __half __float2half(float a) { return a; }
static inline __half __float2half_rn(float a) { return a; }
static inline __half __double2half(double a) { return a; }
static inline __half __int2half_rn(int a) { return a; }
static inline __half __uint2half_rn(unsigned a) { return a; }
static inline __half __short2half_rn(short a) { return a; }
static inline int __half2int_rn(__half a) { return __float2int_rn(a); }
static inline int __half2int_rz(__half a) { return __float2int_rz(a); }
static inline unsigned short __half_as_ushort(__half a) { return a.bits; }
static inline short __half_as_short(__half a) { return (short)a.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }
static inline __half __short_as_half(short bits) { return __half::from_bits((unsigned short)bits); }

static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 __half2half2(__half a) { return {a, a}; }
static inline __half2 __float2half2_rn(float a) { return {a, a}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
static inline __half2 __float22half2_rn(float2 a) { return {a.x, a.y}; }
static inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
static inline __half __low2half(__half2 a) { return a.x; }
static inline __half __high2half(__half2 a) { return a.y; }
static inline __half2 __low2half2(__half2 a) { return {a.x, a.x}; }
static inline __half2 __high2half2(__half2 a) { return {a.y, a.y}; }
static inline __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
static inline __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
