// /// opbench
// operator = "sum"
// title    = "each thread sums a stretch of neighbouring elements"
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "sums_a_stretch_per_thread"
// grid = ["cdiv(n, 8192)"]
// block = ["256"]
// args = ["x", "out", "n"]
// ///
//
// Neighbouring lanes read elements that lie a stretch apart: 32 sectors where 4 would do.
// expect: sums_a_stretch_per_thread.cu:21: uncoalesced: each 4-byte global load request touches 32.0 sectors on average where 4.0
// at: (n=65536)
extern "C" __global__ void sums_a_stretch_per_thread(const float* x, float* out, int n) {
    const int first = (blockIdx.x * 256 + threadIdx.x) * 32;
    float own = 0.0f;
    for (int i = first; i < min(first + 32, n); ++i) own += x[i];
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x % 32 == 0) atomicAdd(out, own);
}
