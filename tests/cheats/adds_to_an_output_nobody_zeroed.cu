// /// opbench
// operator = "sum"
// title    = "atomic additions, and no launch step that zeroes the output"
// launch   = [{ kernel = "adds_to_an_output_nobody_zeroed", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// An output holds anything before the first launch.
// expect: adds_to_an_output_nobody_zeroed.cu:13: uninitialised-global: atomic update of uninitialised global memory
extern "C" __global__ void adds_to_an_output_nobody_zeroed(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float own = i < n ? x[i] : 0.0f;
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x % 32 == 0) atomicAdd(out, own);
}
