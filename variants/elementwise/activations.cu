// /// opbench
// mechanism = ["coalesced"]
// requires  = ["elements <= 4294901760"]
//
// [supports]
// op = [
//     "gelu", "gelu_tanh", "silu", "swiglu", "geglu",
//     "gelu_backward", "gelu_tanh_backward", "silu_backward", "swiglu_backward", "geglu_backward",
// ]
// dtype = ["f32", "bf16"]
//
// [define]
// BF16        = "dtype == 'bf16'"
// FUNCTION    = "function"
// IS_GATED    = "is_gated"
// IS_BACKWARD = "is_backward"
//
// [[launch]]
// kernel = "elementwise_activation"
// grid   = ["cdiv(elements, LANES * BLOCK * UNROLL)"]
// block  = ["BLOCK"]
// args   = ["a", "b?", "dout?", "out", "db?", { u32 = "elements" }]
//
// [variant.activation]
// title     = "an activation or its gradient, one thread per element"
// builds_on = "vectorised"
// define    = { LANES = "1" }
// tune      = { UNROLL = [1], BLOCK = [256, 512], STREAM = [0] }
//
// [variant.activation_vectorised]
// title     = "activation with UNROLL 16-byte vectors per thread and array"
// builds_on = "activation"
// mechanism = ["vectorised_access", "unrolled"]
// define    = { LANES = "lanes" }
// tune      = { UNROLL = [1, 2, 4], BLOCK = [256, 512], STREAM = [0, 1] }
//
// [variant.activation_vectorised.supports]
// op = [
//     "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "sigmoid", "tanh", "leaky_relu", "elu", "selu", "softplus",
//     "softsign", "hardswish", "hardsigmoid", "hardtanh", "exp", "abs",
//     "gelu_backward", "gelu_tanh_backward", "silu_backward", "swiglu_backward", "geglu_backward", "sigmoid_backward",
//     "tanh_backward", "leaky_relu_backward", "elu_backward", "selu_backward", "softplus_backward",
//     "softsign_backward", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "exp_backward",
//     "abs_backward",
// ]
// ///
//
// An exponential and a quotient are an instruction each (activations.cuh). With one element per thread, too few bytes
// are in flight, and addresses cost as many instructions as the function. With vectors, a thread issues all loads
// before the first function. For sm_90, an element of bf16 then costs 11.3 instructions of gelu_tanh, 9.2 of silu and
// 12.1 of swiglu, so that HBM is the limit. STREAM marks all arrays evict-first.
#include <opbench/activations.cuh>
#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Vector<T, LANES> Lanes;
typedef Packed<T, LANES> Pack;
constexpr Function function = Function::FUNCTION;
constexpr bool both = IS_GATED && IS_BACKWARD, reads_b = IS_GATED || IS_BACKWARD;

#if IS_GATED && IS_BACKWARD
#define ARRAYS                                                                                         \
    const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ dout, T* __restrict__ out, \
        T* __restrict__ db
#elif IS_GATED || IS_BACKWARD
#define ARRAYS const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out
constexpr const T* dout = nullptr;
constexpr T* db = nullptr;
#else
#define ARRAYS const T* __restrict__ a, T* __restrict__ out
constexpr const T *b = nullptr, *dout = nullptr;
constexpr T* db = nullptr;
#endif

// Replace a by the result; for the gradient of a gated activation, also replace dout by the gradient of b. The
// parameters are references, because b and dout may be uninitialised if the function does not read them.
__device__ __forceinline__ void apply(T& a, const T& b, T& dout) {
    const float x = (float)a;
    if constexpr (both) {
        const float gradient = (float)dout;
        dout = (T)(gradient * activation<function>(x));
        a = (T)(gradient * (float)b * slope<function>(x));
    } else if constexpr (IS_BACKWARD) {
        a = (T)((float)b * slope<function>(x));
    } else if constexpr (IS_GATED) {
        a = (T)((float)b * activation<function>(x));
    } else {
        a = (T)activation<function>(x);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) elementwise_activation(ARRAYS, unsigned elements) {
    // every array: `elements` elements, aligned to 16 bytes
    const unsigned first = blockIdx.x * (BLOCK * UNROLL) + threadIdx.x, whole = elements / LANES;
    Lanes x[UNROLL], y[UNROLL], z[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
        x[u].raw = load_packed<STREAM>(reinterpret_cast<const Pack*>(a) + i);
        if constexpr (reads_b) y[u].raw = load_packed<STREAM>(reinterpret_cast<const Pack*>(b) + i);
        if constexpr (both) z[u].raw = load_packed<STREAM>(reinterpret_cast<const Pack*>(dout) + i);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const unsigned i = first + u * BLOCK;
        if (i >= whole) break;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) apply(x[u].lane(lane), y[u].lane(lane), z[u].lane(lane));
        store_packed<STREAM>(reinterpret_cast<Pack*>(out) + i, x[u].raw);
        if constexpr (both) store_packed<STREAM>(reinterpret_cast<Pack*>(db) + i, z[u].raw);
    }
    const unsigned rest = whole * LANES + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < LANES && rest < elements) {
        T left = a[rest], gate = left, gradient = left;
        if constexpr (reads_b) gate = b[rest];
        if constexpr (both) gradient = dout[rest];
        apply(left, gate, gradient);
        out[rest] = left;
        if constexpr (both) db[rest] = gradient;
    }
}
