"""Kernels for what only a GPU can show."""

from __future__ import annotations

KERNELS = """
extern "C" __global__ void poke(char* at, int offset, int value) { at[offset] = value; }

extern "C" __global__ void copy(const float4* __restrict__ a, float4* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i];
}

// Writes each element through dynamic shared memory at its far end.
extern "C" __global__ void through_shared(float* out, int last) {
    extern __shared__ float s[];
    s[last - threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = s[last - threadIdx.x] + 1;
}

extern "C" __global__ void __launch_bounds__(128) bounded(float* out) { out[threadIdx.x] = 1; }

extern "C" __global__ void hungry(float* out, int n) {
    __shared__ float s[512];
    float v[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) v[i] = out[i * n];
    s[threadIdx.x] = v[n & 3];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; i++) out[i * n] = v[i] * v[63 - i] + s[i];
}

extern "C" __global__ void half_scale(float* out, int n, float scale) {
    if (threadIdx.x < n) out[threadIdx.x] *= scale;
}

extern "C" __global__ void illegal(float* out) { *(volatile float*)64 = out[0]; }
extern "C" __global__ void misaligned(char* out) { *(float4*)(out + 4) = make_float4(0, 0, 0, 0); }
extern "C" __global__ void trap(float* out) { asm volatile("trap;"); }
"""


NAMES = ("poke", "copy", "through_shared", "bounded", "hungry", "half_scale", "illegal", "misaligned", "trap")
