// /// opbench
// operator = "relu"
// title    = "float4 for all, with cdiv(n, 4) of them"
// launch   = [{ kernel = "rounds_the_vectors_up", grid = ["cdiv(n, 1024)"], block = ["256"] }]
// ///
//
// The last float4 hangs over the end; right where 4 divides n.
// expect: rounds_the_vectors_up.cu:12: out-of-bounds: read of 16 bytes
extern "C" __global__ void rounds_the_vectors_up(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= (n + 3) / 4) return;
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(out)[i] = make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f));
}
