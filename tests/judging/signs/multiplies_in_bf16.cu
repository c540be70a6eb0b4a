// /// opbench
// operator = "relu"
// title    = "tf32 by its header, bf16 by its instructions"
// product = "tf32"
// launch   = [{ kernel = "multiplies_in_bf16", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A macro hides the type from a reader of the source.
//
// sign: lower-class
#define JOINED(a) #a
#define OPCODE(type) "mma.sync.aligned.m16n8k16.row.col.f32." JOINED(type) "." JOINED(type) ".f32 "
extern "C" __global__ void multiplies_in_bf16(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    float d[4] = {};
    const unsigned zero = 0;
    asm volatile(  // here
        OPCODE(bf16) "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(zero));
    if (i < n) out[i] = fmaxf(x[i], 0.0f) + d[0];
}
