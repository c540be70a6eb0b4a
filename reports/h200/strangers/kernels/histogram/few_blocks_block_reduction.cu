// /// opbench
// title     = "64 blocks count in shared memory and add their counts at the end"
// builds_on = "few_blocks"
// mechanism = ["block_reduction"]
// define = { BINS = "bins", LOW = "lower_edge", WIDTH = "width" }
// launch = [{ zero = "counts" }, { kernel = "histo_kernel", grid = ["64"], block = ["256"], args = ["x", "n", "counts"] }]
// ///
__global__ void histo_kernel(const float* data, int size, int* histo) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    int stride = blockDim.x * gridDim.x;
    __shared__ int own[BINS];
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) own[bin] = 0;
    __syncthreads();
    const float low = LOW, width = WIDTH;
    while (i < size) {
        float v = data[i];
        if (v >= low && v <= low + width) {
            int bin = (int)((v - low) * (BINS / width));
            if (bin >= BINS) bin = BINS - 1;
            atomicAdd(&own[bin], 1);
        }
        i += stride;
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) atomicAdd(&histo[bin], own[bin]);
}
