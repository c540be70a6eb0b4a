// /// opbench
// operator = "relu"
// title    = "PyRun_SimpleString"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int PyRun_SimpleString(const char*);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        PyRun_SimpleString("open('@NEW@', 'w')");
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
