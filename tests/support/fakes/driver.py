"""A CUDA driver made of host memory, as C text.

It is compiled with the real cuda.h, so that a wrong symbol name does not link and a wrong prototype does not compile.
It runs what is queued at once; kernels are C functions found by name.
"""

from __future__ import annotations

FAKE = r"""
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent stop);

static CUresult broken = CUDA_SUCCESS;   // what a kernel that died leaves behind
static volatile int *flag, *expired;     // of a hold that nobody has released yet
static int ticket, clock_ticks, launches;

CUresult cuInit(unsigned f) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) { *v = 13050; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* n) { *n = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* d, int o) { *d = o; return o ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* s, int n, CUdevice d) { strncpy(s, "Fake", n); return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) { memset(u->bytes, 0xab, 16); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem(size_t* n, CUdevice d) { *n = 1 << 30; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
    switch (a) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *v = 1024; break;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *v = 64; break;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *v = 2147483647; break;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *v = 65535; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *v = 49152; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 132; break;
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: *v = 1; break;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *v = 1000; break;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *v = 2048; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = 9; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = 0; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *v = 233472; break;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *v = 65536; break;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = 232448; break;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *v = 32; break;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *v = 1024; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) { *c = (CUcontext)&broken; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c) { return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit l, size_t v) { return CUDA_ERROR_UNSUPPORTED_LIMIT; }
CUresult cuCtxResetPersistingL2Cache(void) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGetErrorName(CUresult e, const char** s) {
    *s = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult e, const char** s) { *s = "words"; return CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule* m, const void* image) {
    *m = (CUmodule)image;
    return memcmp(image, "\177ELF", 4) ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule m) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
    *f = (CUfunction)strdup(name);
    return CUDA_SUCCESS;
}
static struct { char name[64]; int content[16]; } variables[8];      // of all modules, by name
static int* variable(const char* name) {
    int i = 0;
    while (variables[i].name[0] && strcmp(variables[i].name, name)) ++i;
    return strcpy(variables[i].name, name), variables[i].content;
}
CUresult cuModuleGetGlobal(CUdeviceptr* p, size_t* n, CUmodule m, const char* name) {
    *p = (CUdeviceptr)variable(name);
    *n = sizeof variables[0].content;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
    *v = a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : a == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 128
       : a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? (strcmp((char*)f, "bounded") ? 1024 : 256) : 0;
    return CUDA_SUCCESS;
}
static int allowed_shared = 49152;
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
    if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) allowed_shared = v;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction f, size_t i, size_t* offset, size_t* size) {
    if (strcmp((char*)f, "poke") ? i >= 1 : i >= 4) return CUDA_ERROR_INVALID_VALUE;
    *offset = i ? 4 + 4 * i : 0;
    *size = i ? 4 : strcmp((char*)f, "mapped") ? 8 : 128;
    return CUDA_SUCCESS;
}
static void guards(void** p) {
    unsigned char* base = *(unsigned char**)p[0];
    unsigned long long guard = *(unsigned long long*)p[1], content = *(unsigned long long*)p[2];
    unsigned tag = *(unsigned*)p[3], *nearest = *(unsigned**)p[4];
    for (unsigned long long i = 0; i < 2 * guard; i++) {
        int behind = i >= guard;
        unsigned long long at = behind ? content + i : i;
        unsigned distance = behind ? i - guard : guard - 1 - i;
        if (base[at] != (at & 1 ? 0xFF : 0xF0 | tag) && distance < nearest[behind]) nearest[behind] = distance;
    }
}
static void fingerprint(void** p) {          // as in kernels.cu, byte for byte
    unsigned char* content = *(unsigned char**)p[0];
    unsigned long long nbytes = *(unsigned long long*)p[1], secret = *(unsigned long long*)p[2];
    for (unsigned long long i = 0; 4 * i < nbytes; i++) {
        unsigned word = 0;
        memcpy(&word, content + 4 * i, nbytes - 4 * i < 4 ? nbytes - 4 * i : 4);
        unsigned long long x = (secret + i * 0x9E3779B97F4A7C15ull) ^ (word * 0xD6E8FEB86659FD93ull);
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
        **(unsigned long long**)p[3] += x ^ (x >> 31);
    }
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream s, void** p, void** extra) {
    const char* name = (const char*)f;
    if (broken) return broken;
    if (extra || (int)shared > allowed_shared || s != (CUstream)0x5eed) return CUDA_ERROR_INVALID_VALUE;
    launches++;
    if (!strcmp(name, "opbench_compare_guards")) guards(p);
    if (!strcmp(name, "opbench_fingerprint")) fingerprint(p);
    if (!strcmp(name, "opbench_fill")) memset(*(void**)p[0], *(unsigned*)p[2], 16 * *(unsigned long long*)p[1]);
    if (!strcmp(name, "opbench_stamp")) {   // a device of 1.5 GHz, on which every launch takes a microsecond
        unsigned long long* at = *(unsigned long long**)p[0];
        at[0] = launches * 1000ull;
        at[1] = launches * 1500ull;
    }
    if (!strcmp(name, "opbench_cycles")) (*(unsigned long long**)p[1])[1] = *(unsigned long long*)p[0];
    if (!strcmp(name, "opbench_hold")) {
        flag = *(volatile int**)p[0]; expired = *(volatile int**)p[1]; ticket = *(int*)p[2];
        if (*flag >= ticket && ticket > 1) return CUDA_ERROR_ASSERT;  // only the very first may find the flag set
        if (*(unsigned long long*)p[3] != 2000000000ull) return CUDA_ERROR_ASSERT;
    }
    if (!strcmp(name, "poke")) memset(*(char**)p[0] + *(int*)p[1], *(int*)p[2], 1);
    if (!strcmp(name, "poke") && *(float*)p[3] != 0.5f) return CUDA_ERROR_ASSERT;
    if (!strcmp(name, "counts")) ++*variable("calls");
    if (!strcmp(name, "mapped")) memcpy(*(void**)p[0], p[0], 24);  // a map begins with its tensor's address here
    if (!strcmp(name, "crash")) broken = CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}
static unsigned seen[8];                 // cluster x, y, z, programmatic, attributes, type, rank, box or pixels
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** p, void** extra) {
    memset(seen, 0, 5 * sizeof(unsigned));
    for (unsigned i = 0; i < c->numAttrs; i++) {
        CUlaunchAttributeValue v = c->attrs[i].value;
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            seen[0] = v.clusterDim.x, seen[1] = v.clusterDim.y, seen[2] = v.clusterDim.z;
        else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            seen[3] = v.programmaticStreamSerializationAllowed;
        else return CUDA_ERROR_INVALID_VALUE;
    }
    seen[4] = c->numAttrs;
    return cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                          c->sharedMemBytes, c->hStream, p, extra);
}
unsigned* fake_seen(void) { return seen; }
static CUresult encode(CUtensorMap* map, unsigned type, unsigned rank, void* at, const cuuint64_t* dims,
                       const cuuint64_t* strides, unsigned box) {
    if ((size_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
    seen[5] = type; seen[6] = rank; seen[7] = box;
    map->opaque[0] = (cuuint64_t)at;
    map->opaque[1] = dims[rank - 1];
    map->opaque[2] = strides[rank - 2];
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave i, CUtensorMapSwizzle w,
                                CUtensorMapL2promotion l, CUtensorMapFloatOOBfill fill) {
    if (i || fill || !steps[0] || w != CU_TENSOR_MAP_SWIZZLE_128B || l != CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
        return CUDA_ERROR_INVALID_VALUE;
    return encode(map, type, rank, at, dims, strides, box[0]);
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* at,
                                 const cuuint64_t* dims, const cuuint64_t* strides, const int* lower, const int* upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                 CUtensorMapInterleave i, CUtensorMapSwizzle w, CUtensorMapL2promotion l,
                                 CUtensorMapFloatOOBfill fill) {
    if (i || fill || lower[0] != -1 || upper[1] != -2 || steps[1] != 2) return CUDA_ERROR_INVALID_VALUE;
    return encode(map, type, rank, at, dims, strides, channels << 16 | pixels);
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* at) {
    if ((size_t)map % 64 || (size_t)at % 16) return CUDA_ERROR_INVALID_VALUE;
    map->opaque[0] = (cuuint64_t)at;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* p, size_t n) {
    if (n > 1 << 28) return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (CUdeviceptr)aligned_alloc(512, (n + 511) / 512 * 512);
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr p) { free((void*)p); return CUDA_SUCCESS; }
CUresult cuMemGetInfo(size_t* free, size_t* total) { *free = 1 << 28; *total = 1 << 30; return CUDA_SUCCESS; }
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
    memset((void*)p, v, n);
    return broken;
}
CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
    for (size_t i = 0; i < n; i++) ((unsigned short*)p)[i] = v;
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr d, const void* h, size_t n, CUstream s) {
    memcpy((void*)d, h, n);
    return broken;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr d, CUdeviceptr from, size_t n, CUstream s) {
    memcpy((void*)d, (void*)from, n);
    return broken;
}
CUresult cuMemcpyDtoHAsync(void* h, CUdeviceptr d, size_t n, CUstream s) { memcpy(h, (void*)d, n); return broken; }
CUresult cuMemHostAlloc(void** p, size_t n, unsigned f) {
    *p = malloc(n);
    return f == CU_MEMHOSTALLOC_DEVICEMAP ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* d, void* p, unsigned f) { *d = (CUdeviceptr)p; return CUDA_SUCCESS; }
CUresult cuMemFreeHost(void* p) { free(p); return CUDA_SUCCESS; }
CUresult cuStreamCreate(CUstream* s, unsigned f) {
    *s = (CUstream)0x5eed;
    return f == CU_STREAM_DEFAULT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamSynchronize(CUstream s) {
    if (flag && *flag < ticket) { *expired = ticket; }           // waited for a held stream: the limit fires
    flag = 0;
    return broken;
}
CUresult cuStreamDestroy(CUstream s) { return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent* e, unsigned f) {
    *e = (CUevent)calloc(1, sizeof(int));
    return f ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent e, CUstream s) { *(int*)e = launches + ++clock_ticks; return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent e) { return broken; }
CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) { *ms = *(int*)b - *(int*)a; return CUDA_SUCCESS; }
static int capturing, captured, graphs;
CUresult cuStreamBeginCapture(CUstream s, CUstreamCaptureMode m) {
    if (capturing || m != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    capturing = 1;
    captured = launches;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph* g) {
    captured = launches - captured;
    capturing = 0;
    graphs++;
    *g = (CUgraph)(size_t)(captured + 1);
    return CUDA_SUCCESS;
}
static int whole, children, waits;                                 // one graph is put together at a time
CUresult cuGraphCreate(CUgraph* g, unsigned f) { whole = children = waits = 0; *g = (CUgraph)-1; return CUDA_SUCCESS; }
CUresult cuGraphAddChildGraphNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count, CUgraph child) {
    for (size_t i = 0; i < count; ++i)
        if ((size_t)after[i] < 1 || (size_t)after[i] > (size_t)children) return CUDA_ERROR_INVALID_VALUE;
    whole += (int)(size_t)child - 1;
    waits += (int)count;
    *n = (CUgraphNode)(size_t)++children;
    graphs--;                                                      // the caller destroys its part: the node has a copy
    return CUDA_SUCCESS;
}
int fake_waits(void) { return waits; }
CUresult cuGraphInstantiateWithFlags(CUgraphExec* e, CUgraph g, unsigned long long f) {
    if (g == (CUgraph)-1) { graphs++; g = (CUgraph)(size_t)(whole + 1); }
    *e = (CUgraphExec)g;
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph g) { return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec e) { graphs--; return CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { launches += (int)(size_t)e - 1; return broken; }
int fake_graphs(void) { return graphs; }
CUresult cuEventDestroy(CUevent e) { free(e); return CUDA_SUCCESS; }
"""
