// /// opbench
// operator = "add"
// title    = "the tail begins at n / 4 where n / 4 * 4 was meant"
// launch   = [{ kernel = "counts_the_tail_in_vectors", grid = ["cdiv(n, 1024)"], block = ["256"] }]
// ///
//
// Thread t of the first warp does element n / 4 + t again and never the last ones.
// expect: counts_the_tail_in_vectors.cu:13: block-race: write of 16 bytes
extern "C" __global__ void counts_the_tail_in_vectors(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x, rest = n / 4 + i;
    if (i < n / 4) {
        const float4 u = reinterpret_cast<const float4*>(a)[i], v = reinterpret_cast<const float4*>(b)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
    }
    if (i < n % 4) out[rest] = a[rest] + b[rest];
}
