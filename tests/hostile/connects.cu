// /// opbench
// operator = "relu"
// title    = "socket and connect"
// launch   = [{ kernel = "hostile", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// must not: open-a-socket
// expect: refused
extern "C" int socket(int, int, int);
extern "C" int connect(int, const void*, unsigned);
extern "C" __global__ void hostile(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        unsigned char address[16] = {2, 0, @PORT@ >> 8, @PORT@ & 255, 127, 0, 0, 1};
        connect(socket(2, 1, 0), address, 16);
    }
    if (i < n) out[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
