// /// opbench
// operator = "add"
// title    = "float4, and the first threads of every block do the tail"
// launch   = [{ kernel = "repeats_the_tail_in_every_block", grid = ["cdiv(n, 1024)"], block = ["256"] }]
// ///
//
// Only one block may: all others write the same elements; right where 4 divides n.
// expect: repeats_the_tail_in_every_block.cu:15: block-race: write of 4 bytes
extern "C" __global__ void repeats_the_tail_in_every_block(const float* a, const float* b, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x, rest = n / 4 * 4 + threadIdx.x;
    if (i < n / 4) {
        const float4 u = reinterpret_cast<const float4*>(a)[i], v = reinterpret_cast<const float4*>(b)[i];
        reinterpret_cast<float4*>(out)[i] = make_float4(u.x + v.x, u.y + v.y, u.z + v.z, u.w + v.w);
    }
    if (rest < n) out[rest] = a[rest] + b[rest];
}
