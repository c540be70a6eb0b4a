// /// opbench
// operator = "relu"
// title    = "float4 for n / 4 and nothing for the rest"
// launch   = [{ kernel = "drops_what_no_vector_holds", grid = ["cdiv(n, 1024)"], block = ["256"] }]
// ///
//
// The last n % 4 elements; right where 4 divides n.
// expect: was never written (1 of |was never written (2 of |was never written (3 of 
extern "C" __global__ void drops_what_no_vector_holds(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n / 4) return;
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    reinterpret_cast<float4*>(out)[i] = make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f));
}
