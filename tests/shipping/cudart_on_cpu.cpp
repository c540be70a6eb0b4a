// What shipped programs call of CUDA's runtime, on the cpu backend: with it they are built by g++ and run without a GPU.
// $SHIP_RUNTIME names the backend's runtime, $SHIP_MODULE the kernels' module, $SHIP_NAMES the file of kernels' names in
// its order and, behind an empty line, of variables'. A finding of the runtime's is an error of the launch.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "of_the_runtime.hpp"  // Launch, Report and opb_tensor_map, as the runtime has them

namespace {
constexpr size_t kReports = 256;

struct Device {
    void *runtime, *module;
    int (*launch)(Launch*);
    uint32_t (*take)(void*);
    void *touch, *dynamic;
    std::map<std::string, void*> entries;
    std::map<std::string, std::pair<void*, size_t>> variables;
    cudaError_t last = cudaSuccess;
    Device() {
        runtime = opened("SHIP_RUNTIME", RTLD_NOW | RTLD_GLOBAL);
        module = opened("SHIP_MODULE", RTLD_NOW);
        launch = (int (*)(Launch*))dlsym(runtime, "opb_launch");
        take = (uint32_t (*)(void*))dlsym(runtime, "opb_take_reports");
        touch = dlsym(module, "opb_touch_shared");
        dynamic = dlsym(module, "opb_dynamic_shared");
        std::ifstream names(std::getenv("SHIP_NAMES"));
        std::string name;
        for (int i = 0; std::getline(names, name) && !name.empty(); ++i)
            entries[name] = dlsym(module, ("opb_entry_" + std::to_string(i)).c_str());
        for (int i = 0; std::getline(names, name); ++i) {
            const std::string symbol = "opb_constant_" + std::to_string(i);
            variables[name] = {((void* (*)())dlsym(module, symbol.c_str()))(),
                               ((unsigned long long (*)())dlsym(module, (symbol + "_bytes").c_str()))()};
        }
    }
    static void* opened(const char* variable, int how) {
        const char* path = std::getenv(variable);
        void* found = path ? dlopen(path, how) : nullptr;
        if (!found) std::fprintf(stderr, "%s: %s\n", variable, path ? dlerror() : "is not set"), std::exit(3);
        return found;
    }
};
Device& device() {
    static Device one;
    return one;
}
cudaError_t failed(cudaError_t error) { return device().last = error; }

CUresult map_of(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* memory, const cuuint64_t* dims,
                const cuuint64_t* strides, const cuuint32_t* steps, CUtensorMapSwizzle swizzle, opb_tensor_map map) {
    if ((uintptr_t)memory % 16) return CUDA_ERROR_INVALID_VALUE;
    const std::map<int, std::pair<int, int>> types = {{CU_TENSOR_MAP_DATA_TYPE_FLOAT16, {3, 2}},
                                                      {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, {4, 2}},
                                                      {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {5, 4}},
                                                      {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, {6, 4}}};
    map.magic = opb_tensor_map_magic, map.rank = (uint8_t)rank, map.swizzle = (uint8_t)swizzle;
    map.type = (uint8_t)types.at(type).first, map.bytes = (uint8_t)types.at(type).second;
    map.address = (unsigned long long)memory;
    for (unsigned i = 0; i < rank; ++i) {
        map.dims[i] = (uint32_t)dims[i], map.steps[i] = (uint8_t)steps[i];
        if (i + 1 < rank) map.strides[i] = strides[i];
    }
    memset(to, 0, sizeof *to);
    memcpy(to, &map, sizeof map);
    return CUDA_SUCCESS;
}
CUresult tiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* memory, const cuuint64_t* dims,
               const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
               CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    opb_tensor_map map = {};
    for (unsigned i = 0; i < rank; ++i) map.box[i] = (uint16_t)box[i];
    return map_of(to, type, rank, memory, dims, strides, steps, swizzle, map);
}
CUresult im2col(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* memory, const cuuint64_t* dims,
                const cuuint64_t* strides, const int* lower, const int* upper, cuuint32_t channels, cuuint32_t pixels,
                const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                CUtensorMapFloatOOBfill) {
    opb_tensor_map map = {};
    map.im2col = 1, map.channels = (uint16_t)channels, map.pixels = (uint16_t)pixels;
    for (unsigned i = 0; i + 2 < rank; ++i) map.lower[i] = (int16_t)lower[i], map.upper[i] = (int16_t)upper[i];
    return map_of(to, type, rank, memory, dims, strides, steps, swizzle, map);
}
CUresult fill32(CUdeviceptr at, unsigned value, size_t count, CUstream) {
    for (size_t i = 0; i < count; ++i) ((unsigned*)at)[i] = value;
    return CUDA_SUCCESS;
}
CUresult fill16(CUdeviceptr at, unsigned short value, size_t count, CUstream) {
    for (size_t i = 0; i < count; ++i) ((unsigned short*)at)[i] = value;
    return CUDA_SUCCESS;
}
}  // namespace

extern "C" {
// Half of what is asked for goes unused behind it, as of the harness's guard bands.
cudaError_t cudaMalloc(void** at, size_t bytes) {
    return (*at = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096)) ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* at) { return free(at), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return memmove(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    return memmove(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, size_t bytes) { return memset(at, value, bytes), cudaSuccess; }
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) { return memset(at, value, bytes), cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return device().last; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return device().last; }
cudaError_t cudaGetLastError() {
    const cudaError_t last = device().last;
    return device().last = cudaSuccess, last;
}
const char* cudaGetErrorName(cudaError_t error) { return error ? "cudaError" : "cudaSuccess"; }
const char* cudaGetErrorString(cudaError_t error) { return error ? "of the cpu backend" : "no error"; }
cudaError_t cudaGetDevice(int* number) { return *number = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    const char* gpu = std::getenv("SHIP_CAPABILITY");  // of a GPU to be taken for
    const int capability = gpu ? std::atoi(gpu) : 90;
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
    return bytes <= 227 << 10 ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { return *milliseconds = 0, cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaErrorNotSupported; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) { return cudaErrorNotSupported; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                void**, unsigned) {
    return *library = (cudaLibrary_t)&device(), cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
    *kernel = (cudaKernel_t)device().entries[name];
    return *kernel ? cudaSuccess : failed(cudaErrorSymbolNotFound);
}
cudaError_t cudaLibraryGetGlobal(void** at, size_t* bytes, cudaLibrary_t, const char* name) {
    *at = device().variables[name].first, *bytes = device().variables[name].second;
    return *at ? cudaSuccess : failed(cudaErrorSymbolNotFound);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
    const std::map<std::string, void*> known = {{"cuTensorMapEncodeTiled", (void*)&tiled},
                                                {"cuTensorMapEncodeIm2col", (void*)&im2col},
                                                {"cuMemsetD32Async", (void*)&fill32},
                                                {"cuMemsetD16Async", (void*)&fill16}};
    *found = known.count(name) ? known.at(name) : nullptr;
    if (answer) *answer = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
    Launch launch = {};
    launch.entry = (void (*)(void**))kernel, launch.arguments = arguments;
    launch.touch_shared = (char* (*)())device().touch, launch.dynamic_shared = (char* (*)())device().dynamic;
    launch.grid = {config->gridDim.x, config->gridDim.y, config->gridDim.z};
    launch.block = {config->blockDim.x, config->blockDim.y, config->blockDim.z};
    launch.cluster = {1, 1, 1};
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const cudaLaunchAttribute& one = config->attrs[i];
        if (one.id == cudaLaunchAttributeClusterDimension)
            launch.cluster = {one.val.clusterDim.x, one.val.clusterDim.y, one.val.clusterDim.z};
        if (one.id == cudaLaunchAttributeProgrammaticStreamSerialization) launch.programmatic = 1;
        if (one.id == cudaLaunchAttributeCooperative) launch.cluster = launch.grid;
    }
    launch.shared_bytes = (uint32_t)config->dynamicSmemBytes;
    launch.workers = 2, launch.order_multiplier = 1, launch.spins = 1;
    const int answer = device().launch(&launch);
    static Report reports[kReports];
    const uint32_t found = device().take(reports);
    if (found) std::fprintf(stderr, "the cpu runtime has a finding of kind %u\n", reports[0].kind);
    return answer || found ? failed(cudaErrorLaunchFailure) : cudaSuccess;
}
}
