// /// opbench
// operator = "relu"
// title    = "open and read"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: read-a-file
// expect: refused
extern "C" int open(const char*, int, ...);
extern "C" long read(int, void*, unsigned long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        read(open("@CANARY@", 0), out, n * 4ul);
        return;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
