// /// opbench
// title     = "16 bytes per thread in each of the three kernels"
// builds_on = "three_kernels"
// mechanism = ["vectorised_access"]
// requires  = ["n % 4 == 0"]
//
// [[launch]]
// kernel = "update_m"
// grid   = ["cdiv(n, 1024)"]
// block  = ["256"]
// args   = ["gradient", "moment1", "rates", "hyper", "new_moment1", "n // 4"]
//
// [[launch]]
// kernel = "update_v"
// grid   = ["cdiv(n, 1024)"]
// block  = ["256"]
// args   = ["gradient", "moment2", "rates", "hyper", "new_moment2", "n // 4"]
//
// [[launch]]
// kernel = "update_p"
// grid   = ["cdiv(n, 1024)"]
// block  = ["256"]
// args   = ["parameter", "new_moment1", "new_moment2", "rates", "hyper", "new_parameter", "n // 4"]
// ///
__global__ void update_m(const float4* g, const float4* m, const float* rates, const float* hyper, float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 a = m[i], b = g[i];
        float keep = hyper[0], add = 1.0f - hyper[0], factor = rates[3];
        out[i] = make_float4(keep * a.x + add * (factor * b.x), keep * a.y + add * (factor * b.y),
                             keep * a.z + add * (factor * b.z), keep * a.w + add * (factor * b.w));
    }
}

__device__ float second(float v, float grad, float keep) { return keep * v + (1.0f - keep) * grad * grad; }

__global__ void update_v(const float4* g, const float4* v, const float* rates, const float* hyper, float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 a = v[i], b = g[i];
        float keep = hyper[1], factor = rates[3];
        out[i] = make_float4(second(a.x, factor * b.x, keep), second(a.y, factor * b.y, keep),
                             second(a.z, factor * b.z, keep), second(a.w, factor * b.w, keep));
    }
}

__device__ float stepped(float p, float m, float v, const float* rates, const float* hyper) {
    float m_hat = m * rates[1];
    float v_hat = v * rates[2];
    return p - rates[0] * m_hat / (sqrtf(v_hat) + hyper[2]);
}

__global__ void update_p(const float4* p, const float4* m, const float4* v, const float* rates, const float* hyper,
                         float4* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 a = p[i], b = m[i], c = v[i];
        out[i] = make_float4(stepped(a.x, b.x, c.x, rates, hyper), stepped(a.y, b.y, c.y, rates, hyper),
                             stepped(a.z, b.z, c.z, rates, hyper), stepped(a.w, b.w, c.w, rates, hyper));
    }
}
