// /// opbench
// operator = "sum"
// title    = "blocks add to a __device__ variable without atomics"
//
// [[launch]]
// kernel = "clear_sum"
// grid = ["1"]
// block = ["1"]
// args = ["n"]
//
// [[launch]]
// kernel = "add_to_sum"
// grid = ["cdiv(n, 32)"]
// block = ["32"]
// args = ["x", "n"]
//
// [[launch]]
// kernel = "tell_sum"
// grid = ["1"]
// block = ["1"]
// args = ["out"]
// ///
//
// Two blocks may read the same old total.
// expect: blocks_add_to_a_device_variable.cu:32: block-race
__device__ float sum_of_blocks;
extern "C" __global__ void clear_sum(int n) { sum_of_blocks = 0.0f; }
extern "C" __global__ void add_to_sum(const float* x, int n) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    float own = i < n ? x[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x == 0) sum_of_blocks += own;
}
extern "C" __global__ void tell_sum(float* out) { out[0] = sum_of_blocks; }
