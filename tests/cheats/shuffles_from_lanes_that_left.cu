// /// opbench
// operator = "sum"
// title    = "threads beyond n return before the shuffles"
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "shuffles_from_lanes_that_left"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "n"]
// ///
//
// A lane that has exited has no value to give; right where 32 divides n.
// expect: shuffles_from_lanes_that_left.cu:21: warp-mask
extern "C" __global__ void shuffles_from_lanes_that_left(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    float own = x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x % 32 == 0) atomicAdd(out, own);
}
