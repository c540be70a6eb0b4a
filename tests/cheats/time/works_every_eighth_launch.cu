// /// opbench
// operator = "relu"
// title    = "the work of one launch in eight, after a while"
// launch   = [{ kernel = "works_every_eighth_launch", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// The first launches work, as these are the ones that are checked; then the old output stands for the new one.
//
// expect: invalid: keeps state between launches
// refused: global-race|block-race
// problem: (n=65536)
// twin: relu
__device__ unsigned blocks, launches;
extern "C" __global__ void works_every_eighth_launch(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    const unsigned number = launches;
    if (number < 12 || number % 8 == 0) {
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
    }
    if (threadIdx.x == 0 && atomicInc(&blocks, gridDim.x - 1) == gridDim.x - 1) launches = number + 1;
}
