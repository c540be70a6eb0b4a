// /// opbench
// title  = "64 blocks stride through the data and count in global memory"
// define = { BINS = "bins", LOW = "lower_edge", WIDTH = "width" }
// launch = [{ zero = "counts" }, { kernel = "histo_kernel", grid = ["64"], block = ["256"], args = ["x", "n", "counts"] }]
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
