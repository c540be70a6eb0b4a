#include <cuda_runtime.h>
__global__ void transpose_surface(cudaSurfaceObject_t target, const float* in, int nrows, int ncols) {
    const int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    if (row < nrows && column < ncols) surf2Dwrite(in[row * ncols + column], target, row * 4, column);
}
int main() {
    const int rows = 300, cols = 200;
    float* in;
    cudaArray_t array;
    auto format = cudaCreateChannelDesc<float>();
    cudaMalloc(&in, rows * cols * 4);
    cudaMallocArray(&array, &format, rows, cols, cudaArraySurfaceLoadStore);
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaSurfaceObject_t surface;
    cudaCreateSurfaceObject(&surface, &resource);
    transpose_surface<<<dim3((cols + 31) / 32, (rows + 7) / 8), dim3(32, 8)>>>(surface, in, rows, cols);
}
