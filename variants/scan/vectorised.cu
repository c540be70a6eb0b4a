// /// opbench
// mechanism = [
//     "coalesced", "vectorised_access", "warp_shuffle", "fewer_barriers", "unrolled", "compile_time_sizes",
// ]
// where     = ["ITEMS * BLOCK <= 1024"]
//
// [supports]
// op        = ["sum", "prod"]
// kind      = ["inclusive", "exclusive"]
// direction = ["forward", "reverse"]
// mask      = ["none", "given"]
// dtype     = ["f32", "bf16"]
//
// [define]
// BF16      = "dtype == 'bf16'"
// PRODUCTS  = "op == 'prod'"
// EXCLUSIVE = "kind == 'exclusive'"
// REVERSE   = "direction == 'reverse'"
// MASKED    = "mask == 'given'"
// LANES     = "lanes"
// VECTORS   = "cols // lanes"
// CHUNKS    = "cdiv(VECTORS, BLOCK * ITEMS)"
//
// [variant.vectorised]
// title     = "one block per row, ITEMS 16-byte vectors per thread and chunk"
// builds_on = "warp_shuffles"
// tune      = { BLOCK = [256, 128, 512], ITEMS = [4, 2, 8, 1] }
// define    = { LOOK_BACK = "0" }
//
// [[variant.vectorised.launch]]
// kernel = "scan_chunks"
// grid   = ["rows"]
// block  = ["BLOCK"]
// args   = ["x", "mask?", "out"]
//
// [variant.look_back]
// title     = "decoupled look-back: one block per chunk, which gets the prefix of earlier chunks from their blocks"
// builds_on = "vectorised"
// mechanism = ["split_k"]
// tune      = { BLOCK = [256, 128, 512], ITEMS = [4, 2, 8] }
// define    = { LOOK_BACK = "1" }
// requires  = ["VECTORS >= 1024", "rows * CHUNKS <= 1073741824"]
// workspace = { chunks = "2 * rows * CHUNKS + 2" }
// reproducible = false
//
// [[variant.look_back.launch]]
// zero = "chunks"
//
// [[variant.look_back.launch]]
// kernel = "scan_chunks"
// grid   = ["rows * CHUNKS"]
// block  = ["BLOCK"]
// args   = ["x", "mask?", "out", "chunks"]
// ///
//
// A chunk has ITEMS lines of BLOCK vectors. Each warp combines its part of a line by shuffles; one warp then combines
// the results of all parts of the chunk, so a chunk costs two barriers, independent of ITEMS. In `vectorised` a block
// passes the result of a chunk on to the next chunk of its row.
//
// In `look_back` a long row has one block per chunk. A block first publishes the result of its chunk. Then it reads
// what the previous chunks have published, 32 at a time, until it finds one that has published the result of the row up
// to its end; then it publishes the same for its own chunk (decoupled look-back: Merrill and Garland, NVIDIA technical
// report NVR-2016-002). State and result are one 8-byte word, so no fence is needed. A block takes its chunk's index
// when it starts, so all blocks that it waits for are running. Which results are published first determines how a sum
// is grouped, so the last bits may vary. Limit: HBM, one read and one write.

#include <opbench/vectors.cuh>
using namespace opbench;

typedef Element<BF16> T;
typedef Vector<T, LANES> Lanes;
typedef Packed<T, LANES> Pack;
typedef unsigned long long Word;  // the state of a chunk in the upper half, a float in the lower one
constexpr int WARPS = BLOCK / 32, PIECES = ITEMS * WARPS;
constexpr float identity = PRODUCTS ? 1.0f : 0.0f;
constexpr unsigned chunk_state = 1,
                   prefix_state = 2;  // states: the result of the chunk alone, and of the row up to its end
static_assert(PIECES <= 32, "one warp combines the results of a chunk");

__device__ __forceinline__ float combine(float a, float b) { return PRODUCTS ? a * b : a + b; }

// Combine the values of the lanes up to this one; `exclusive_prefix` is the result without this lane's.
__device__ __forceinline__ float scan_warp(float value, float& exclusive_prefix) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, distance);
        if (lane >= distance) value = combine(other, value);
    }
    exclusive_prefix = __shfl_up_sync(0xffffffffu, value, 1);
    if (lane == 0) exclusive_prefix = identity;
    return value;
}

// Publish the state of a chunk with its result.
__device__ __forceinline__ void publish(Word* chunk, unsigned state, float result) {
    atomicExch(chunk, (Word)state << 32 | __float_as_uint(result));
}

// Return the result of all chunks of a row before number `chunk`, in every lane of a warp.
__device__ __forceinline__ float look_back(const Word* row, int chunk) {
    const int lane = threadIdx.x % 32;
    float result = identity;
    for (int nearest = chunk - 1;; nearest -= 32) {
        Word word = (Word)prefix_state << 32 | __float_as_uint(identity);  // before the start of the row
        if (nearest >= lane) {
            do word = *static_cast<const volatile Word*>(row + nearest - lane);
            while (word == 0);
        }
        const unsigned complete = __ballot_sync(0xffffffffu, word >> 32 == prefix_state);
        float value = lane > __ffs(complete) - 1 && complete != 0 ? identity : __uint_as_float((unsigned)word);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, step));
        result = combine(value, result);
        if (complete != 0) return result;
    }
}

#if MASKED
#define MASK_ARGUMENT const unsigned char* __restrict__ mask,
#else
#define MASK_ARGUMENT
#endif
#if LOOK_BACK
#define ARRAYS const T* __restrict__ x, MASK_ARGUMENT T* __restrict__ out, Word* chunks
#else
#define ARRAYS const T* __restrict__ x, MASK_ARGUMENT T* __restrict__ out
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) scan_chunks(ARRAYS) {
    // x, mask, out [rows][VECTORS * LANES]; chunks [rows * CHUNKS + 1], zero at the start: the last one counts blocks
    __shared__ float pieces[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#if LOOK_BACK
    __shared__ unsigned number;
    if (threadIdx.x == 0) number = atomicAdd(reinterpret_cast<unsigned*>(chunks + gridDim.x), 1u);
    __syncthreads();
    const unsigned row = number / CHUNKS, block_chunk = number % CHUNKS;
    Word* state = chunks + (size_t)row * CHUNKS;
    {
        const unsigned chunk = block_chunk;
#else
    const unsigned row = blockIdx.x;
    float carry = identity;  // in the first warp
    for (unsigned chunk = 0; chunk < CHUNKS; ++chunk) {
#endif
        const Pack* source = reinterpret_cast<const Pack*>(x) + (size_t)row * VECTORS;
        Pack* target = reinterpret_cast<Pack*>(out) + (size_t)row * VECTORS;
        Lanes vectors[ITEMS];
        float exclusive_prefix[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const unsigned vector = (chunk * ITEMS + k) * BLOCK + threadIdx.x;
            if (vector >= VECTORS) continue;
            vectors[k].raw = __ldcs(source + (REVERSE ? VECTORS - 1 - vector : vector));
#if MASKED
            Vector<unsigned char, LANES> counts;
            counts.raw = __ldcs(reinterpret_cast<const Packed<unsigned char, LANES>*>(mask) + (size_t)row * VECTORS +
                                (REVERSE ? VECTORS - 1 - vector : vector));
#pragma unroll
            for (int i = 0; i < LANES; ++i)
                if (counts.lane(i) == 0) vectors[k].lane(i) = (T)identity;
#endif
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            float value = identity;
            if ((chunk * ITEMS + k) * BLOCK + threadIdx.x < VECTORS) {
#pragma unroll
                for (int i = 0; i < LANES; ++i)
                    value = combine(value, (float)vectors[k].lane(REVERSE ? LANES - 1 - i : i));
            }
            value = scan_warp(value, exclusive_prefix[k]);
            if (lane == 31) pieces[k * WARPS + warp] = value;
        }
        __syncthreads();
        if (warp == 0) {
            float first;
            const float last = scan_warp(lane < PIECES ? pieces[lane] : identity, first);
            const float whole = __shfl_sync(0xffffffffu, last, 31);
#if LOOK_BACK
            if (lane == 0) publish(state + chunk, chunk == 0 ? prefix_state : chunk_state, whole);
            const float carry = chunk == 0 ? identity : look_back(state, chunk);
            if (lane == 0 && chunk != 0) publish(state + chunk, prefix_state, combine(carry, whole));
            pieces[lane] = combine(carry, first);
#else
            pieces[lane] = combine(carry, first);
            carry = combine(carry, whole);
#endif
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const unsigned vector = (chunk * ITEMS + k) * BLOCK + threadIdx.x;
            if (vector >= VECTORS) break;
            float running = combine(pieces[k * WARPS + warp], exclusive_prefix[k]);
#pragma unroll
            for (int i = 0; i < LANES; ++i) {
                T& element = vectors[k].lane(REVERSE ? LANES - 1 - i : i);
                const float exclusive = running;
                running = combine(running, (float)element);
                element = (T)(EXCLUSIVE ? exclusive : running);
            }
            __stcs(target + (REVERSE ? VECTORS - 1 - vector : vector), vectors[k].raw);
        }
#if !LOOK_BACK
        __syncthreads();  // before the next chunk overwrites the results of the pieces
#endif
    }
}
