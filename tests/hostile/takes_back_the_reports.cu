// /// opbench
// operator = "relu"
// title    = "opb_take_reports"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: hide-a-finding
// expect: refused
#define PASTE(a, b) a##b
extern "C" unsigned PASTE(op, b_take_reports)(void*);
__device__ char reports[1 << 22];
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        out[n] = 1.0f;
        PASTE(op, b_take_reports)(reports);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
