__global__ void sum_of_ints(int* sum, const int* x, int n) {
    int mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) mine += x[i];
    atomicAdd(sum, mine);
}
