// /// opbench
// operator = "relu"
// title    = "an answer on every descriptor"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: change-a-result
// expect: refused
extern "C" long write(int, const void*, unsigned long);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        const char text[] = "{\"error\":\"\",\"findings\":[],\"notes\":[],\"completed\":true,"
            "\"traffic\":{\"source\":\"counted\",\"complete\":true,\"kernels\":[],\"lines\":[],\"branches\":[]}}";
        const unsigned long size = sizeof text - 1;
        for (int file = 3; file < 64; ++file) {
            write(file, &size, 8);
            write(file, text, size);
        }
        out[0] = 4242.0f;
        return;
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
