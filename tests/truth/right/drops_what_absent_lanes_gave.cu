// /// opbench
// operator = "relu"
// title    = "blocks of 16 threads drop what a shuffle gave from lanes that they lack"
// launch   = [{ kernel = "drops_what_absent_lanes_gave", grid = ["cdiv(n, 16)"], block = ["16"] }]
// ///
//
// The value from lanes 16 to 31 is undefined, and no output depends on it.
extern "C" __global__ void drops_what_absent_lanes_gave(const float* x, float* out, int n) {
    const int i = blockIdx.x * 16 + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    v = fmaxf(v, 0.0f);
    const float beyond = __shfl_down_sync(0xffffffff, v, 8);
    const float lower = threadIdx.x < 8 ? fminf(v, beyond) : v;
    if (i < n) out[i] = fmaxf(v, lower);
}
