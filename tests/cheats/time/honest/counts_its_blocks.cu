// /// opbench
// operator = "relu"
// title    = "a counter that the last block sets back, and scratch in a module variable"
// launch   = [{ kernel = "counts_its_blocks", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// atomicInc wraps around at the last block, so the next launch finds 0 again. Scratch holds other bytes after every
// launch, but no launch reads what another one left.
//
// expect: right
// problem: (n=65536)
__device__ unsigned blocks;
__device__ float scratch[1 << 20];
extern "C" __global__ void counts_its_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    scratch[i & 0xfffff] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = fmaxf(scratch[i & 0xfffff], 0.0f);
    if (threadIdx.x == 0) atomicInc(&blocks, gridDim.x - 1);
}
