// /// opbench
// operator = "relu"
// title    = "red.relaxed.cta where blocks share the counter"
// launch   = [{ kernel = "cta_scope_red_between_blocks", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// The scope .cta is the block.
// expect: cta_scope_red_between_blocks.cu:14: block-race
__device__ int total;
__global__ void cta_scope_red_between_blocks(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x == 0) {
        asm volatile("red.relaxed.cta.global.add.s32 [%0], %1;" ::"l"(&total), "r"(1) : "memory");
    }
}
