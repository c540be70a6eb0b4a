// /// opbench
// operator = "relu"
// title    = "mount"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: write-a-file
// expect: refused
extern "C" int mount(const char*, const char*, const char*, unsigned long, const void*);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        mount("none", "@FOLDER@", "tmpfs", 0, nullptr);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
