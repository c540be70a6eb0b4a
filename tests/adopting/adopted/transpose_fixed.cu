const int width = 1024;
__global__ void transpose(float* out, const float* in) {
    const int x = blockIdx.x * 32 + threadIdx.x, w = gridDim.x * 32;
    for (int j = 0; j < 32; j += 8) out[x * w + blockIdx.y * 32 + threadIdx.y + j] = in[(blockIdx.y * 32 + threadIdx.y + j) * w + x];
}
int main() {
    float *in, *out;
    cudaMalloc(&in, width * width * 4);
    cudaMalloc(&out, width * width * 4);
    transpose<<<dim3(width / 32, width / 32), dim3(32, 8)>>>(out, in);
}
