// /// opbench
// operator = "relu"
// launch = [{ kernel = "good", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
// one kernel that cannot run does not block the others of its file: "this_grid()" in a string
__device__ const char* words = "asm volatile(\"frob.f32\"); __cluster_dims__ this_grid()";
extern "C" __global__ void bad(float* x) { asm volatile("frobnicate.f32 %0, %0;" : "+f"(x[0])); }
extern "C" __global__ void __cluster_dims__(2) clustered(float* x) { x[0] = 1; }
extern "C" __global__ void good(const float* x, float* out, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
