// /// opbench
// operator = "relu"
// title    = "unshare and setns"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: start-a-process
// expect: refused
extern "C" int unshare(int);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        unshare(0x10000000);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
