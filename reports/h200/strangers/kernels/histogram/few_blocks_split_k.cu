// /// opbench
// title     = "1056 blocks, eight for each multiprocessor of an H100, share the data"
// builds_on = "few_blocks"
// mechanism = ["split_k"]
// define = { BINS = "bins", LOW = "lower_edge", WIDTH = "width" }
// launch = [{ zero = "counts" }, { kernel = "histo_kernel", grid = ["1056"], block = ["256"], args = ["x", "n", "counts"] }]
// ///
__global__ void histo_kernel(const float* data, int size, int* histo) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    int stride = blockDim.x * gridDim.x;
    const float low = LOW, width = WIDTH;
    while (i < size) {
        float v = data[i];
        if (v >= low && v <= low + width) {
            int bin = (int)((v - low) * (BINS / width));
            if (bin >= BINS) bin = BINS - 1;
            atomicAdd(&histo[bin], 1);
        }
        i += stride;
    }
}
