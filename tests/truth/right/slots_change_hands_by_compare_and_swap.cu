// /// opbench
// operator = "relu"
// title    = "a slot goes from empty to full by compare-and-swap"
// launch   = [{ kernel = "slots_change_hands_by_compare_and_swap", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Each block fills one free slot. Nothing was in it, so nothing has to be acquired; no slot becomes free again.
__device__ int state[128], content[128];
__global__ void slots_change_hands_by_compare_and_swap(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
    if (threadIdx.x) return;
    for (int slot = 0; slot < 128; ++slot) {
        if (atomicCAS(&state[slot], 0, 1) != 0) continue;
        content[slot] = blockIdx.x;
        __threadfence();
        atomicExch(&state[slot], 2);
        break;
    }
    if (atomicAdd(&state[0], 0) == 2) {
        __threadfence();
        if (i < n && content[0] == -1) out[i] = -1.0f;
    }
}
