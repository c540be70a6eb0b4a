// The epilogue of wgmma: bias, an activation, stores. Each warp processes its own 16 rows, without a barrier of the
// block.
// (The sums' layout in registers is described in wgmma.cuh.)
#pragma once
#include <opbench/activations.cuh>
#include <opbench/barrier.cuh>
#include <opbench/bf16.cuh>
#include <opbench/tma.cuh>

namespace opbench {

__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }
// x * 2^e, in two steps, because 2^e may not be representable as a float.
__device__ __forceinline__ float scaled(float x, int e) {
    const int half = e / 2;
    return x * power_of_two(max(-126, min(127, half))) * power_of_two(max(-126, min(127, e - half)));
}

// d *= 2 ** (by_row[row] + by_column[column]), for a warp's 16 rows from `row` on.
template <int count>
__device__ __forceinline__ void scale_sums(float (&d)[count], const int* by_row, const int* by_column, int row,
                                           int column, int rows, int columns) {
    const int top = row + threadIdx.x % 32 / 4, first = column + threadIdx.x % 4 * 2;
    const int above = top < rows ? by_row[top] : 0, below = top + 8 < rows ? by_row[top + 8] : 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int at = first + i / 4 * 8 + i % 2;
        d[i] = scaled(d[i], (i / 2 % 2 ? below : above) + (at < columns ? by_column[at] : 0));
    }
}

// The same for sums whose rows share one power of two.
template <int count>
__device__ __forceinline__ void scale_columns(float (&d)[count], int common, const int* by_column, int column,
                                              int columns) {
    const int first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int at = first + i / 4 * 8 + i % 2;
        d[i] = scaled(d[i], common + (at < columns ? by_column[at] : 0));
    }
}

// Store four 8 x 8 matrices of 16-bit elements to shared memory; each lane provides the address of a row. The second
// function also transposes.
__device__ __forceinline__ void store_matrices(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
__device__ __forceinline__ void store_transposed(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// Add the bias of each sum's column to d, then apply an activation on request; `column` is the first column of the
// sums.
template <int activation_id, class T, int count>
__device__ __forceinline__ void add_bias(float (&d)[count], const T* bias, int column, int columns) {
    const int first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < count / 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int at = first + j * 8 + e;
            const float shift = at < columns ? widen(bias[at]) : 0.0f;
#pragma unroll
            for (int i = e; i < 4; i += 2) d[j * 4 + i] = apply_activation<activation_id>(d[j * 4 + i] + shift);
        }
}

__device__ __forceinline__ float2 load_two(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ __forceinline__ float2 load_two(const unsigned short* from) {
    const unsigned both = *reinterpret_cast<const unsigned*>(from);
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
// d = combine(d, other) for a warp's 16 rows, from `row` on, of other [rows][columns], columns even.
template <class T, int count, class Combine>
__device__ __forceinline__ void combine_pairs(float (&d)[count], const T* other, int row, int column, int rows,
                                              int columns, const Combine& combine) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
        const int top = row + lane / 4 + i % 2 * 8, at = column + i / 2 * 8 + lane % 4 * 2;
        if (top >= rows || at >= columns) continue;
        const float2 two = load_two(other + (size_t)top * columns + at);
        d[i * 2] = combine(d[i * 2], two.x), d[i * 2 + 1] = combine(d[i * 2 + 1], two.y);
    }
}

__device__ __forceinline__ void store_two(float* to, float x, float y) {
    *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
__device__ __forceinline__ void store_two(unsigned short* to, float x, float y) {
    *reinterpret_cast<unsigned*>(to) = pack_bf16(x, y);
}
// Store a warp's 16 rows, from `row` on, to out [rows][columns], columns even: four lanes write 32 bytes, a sector.
template <class T, int count>
__device__ __forceinline__ void store_pairs(const float (&d)[count], T* out, int row, int column, int rows,
                                            int columns) {
    const int lane = threadIdx.x % 32, top = row + lane / 4;
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
        const int at = column + j * 8 + lane % 4 * 2;
        if (at >= columns) continue;
        if (top < rows) store_two(out + (size_t)top * columns + at, d[j * 4], d[j * 4 + 1]);
        if (top + 8 < rows) store_two(out + (size_t)(top + 8) * columns + at, d[j * 4 + 2], d[j * 4 + 3]);
    }
}

// The same in bf16, with 16-byte stores of whole 128-byte lines, through 2 KB of shared memory of this warp; columns a
// multiple of 8, rows of out `pitch` elements apart.
template <int count>
__device__ __forceinline__ void store_lines(const float (&d)[count], unsigned char* slab, unsigned short* out, int row,
                                            int column, int rows, int columns, int pitch) {
    store_lines(d, slab, out, row, column, rows, columns, [&](int, int at) { return (size_t)at * pitch; });
}
// The same, but row `at` of the sums is stored from element place(i, at) on; it is the i-th of a thread's 4 rows, which
// are row + i * 4 + lane / 8.
template <int count, class Place>
__device__ __forceinline__ void store_lines(const float (&d)[count], unsigned char* slab, unsigned short* out, int row,
                                            int column, int rows, int columns, const Place& place) {
    const unsigned lane = threadIdx.x % 32, line = lane % 16, to = shared_address(slab) + line * 128;
#pragma unroll
    for (int part = 0; part < (count + 31) / 32; ++part) {
        if (part > 0) __syncwarp();  // all lanes have read the previous lines
#pragma unroll
        for (int j = 0; j < min(4, count / 8 - part * 4); ++j) {
            const float* from = d + part * 32 + j * 8;
            store_matrices(to + ((2 * j + lane / 16) ^ line % 8) * 16, pack_bf16(from[0], from[1]),
                           pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
        }
        __syncwarp();
        const int width = min(8, count / 4 - part * 8), chunk = lane % 8, at = column + part * 64 + chunk * 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int one = i * 4 + lane / 8;
            if (chunk < width && row + one < rows && at < columns)
                *reinterpret_cast<uint4*>(out + place(i, row + one) + at) =
                    *reinterpret_cast<const uint4*>(slab + one * 128 + (chunk ^ one % 8) * 16);
        }
    }
}

// The same with TMA stores of 16 rows of 64 bf16, which clip at the edges, through 2 KB buffers ("slabs") of the warp.
// The buffers alternate: one is written while TMA reads the other. The map's box is 64 x 16.
template <int slabs = 2>
struct EpilogueSmem {
    static constexpr int slab_bytes = 16 * 128, warp_bytes = slabs * slab_bytes, block_bytes = 8 * warp_bytes;
    unsigned memory, slab_index = 0;

    // For the consumers' warps, 4 to 11 of the block.
    __device__ __forceinline__ explicit EpilogueSmem(unsigned memory_)
        : memory(memory_ + (threadIdx.x / 32 - 4) * warp_bytes) {}
    // put(slab, column), called by one lane, stores 16 rows of 64 columns; `column` is relative to the first column of
    // the sums.
    template <int count, class Put>
    __device__ __forceinline__ void store_parts(const float (&d)[count], const Put& put) {
        const unsigned lane = threadIdx.x % 32, line = lane % 16;
#pragma unroll
        for (int part = 0; part < (count + 31) / 32; ++part) {
            const unsigned slab = memory + slab_index * slab_bytes;
            slab_index = slab_index + 1 == slabs ? 0 : slab_index + 1;
            if (lane == 0) wait_for_reads<slabs - 1>();  // the last store has read this buffer
            __syncwarp();
#pragma unroll
            for (int j = 0; j < min(4, count / 8 - part * 4); ++j) {
                const float* from = d + part * 32 + j * 8;
                store_matrices(slab + line * 128 + ((2 * j + lane / 16) ^ line % 8) * 16, pack_bf16(from[0], from[1]),
                               pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]), pack_bf16(from[6], from[7]));
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                put(slab, part * 64);
                commit_stores();
            }
        }
    }
    template <int count>
    __device__ __forceinline__ void store_rows(const float (&d)[count], const TensorMap* map, int row, int column,
                                               int rows, int columns) {
        store_parts(d, [&](unsigned slab, int at) {
            if (row < rows && column + at < columns) store(map, slab, column + at, row);
        });
    }
    __device__ __forceinline__ static void finish() {
        if (threadIdx.x % 32 == 0) wait_for_stores<0>();
    }
};

// Load four 8 x 8 matrices of 16-bit numbers, in the layout of store_matrices.
__device__ __forceinline__ void load_four(unsigned (&to)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
}

// Another bf16 operand of the output's shape, which is combined with the sums. TMA loads it into buffers of 16 rows of
// 64 columns, as many as a warp's sums need, while the sums are computed; the result is stored from the same buffers.
// Both maps have boxes of 64 x 16. For the consumers' warps, 4 to 11 of the block; the next 16 rows of a warp are 64
// rows further.
template <int tiles, int columns_of_sums>
struct OperandSmem {
    static constexpr int slab_bytes = 16 * 128, parts = columns_of_sums / 64, warp_bytes = tiles * parts * slab_bytes,
                         block_bytes = 8 * warp_bytes, barrier_bytes = 8 * 8;
    unsigned memory, barrier, phase = 0;

    __device__ __forceinline__ OperandSmem(unsigned memory_, unsigned barriers)
        : memory(memory_ + (threadIdx.x / 32 - 4) * warp_bytes), barrier(barriers + (threadIdx.x / 32 - 4) * 8) {}
    // Call in one thread, before the block synchronises.
    __device__ __forceinline__ static void init(unsigned barriers) {
        for (int warp = 0; warp < 8; ++warp) barrier_init(barriers + 8 * warp, 1);
        barrier_init_fence();
    }
    __device__ __forceinline__ void fetch(const TensorMap* map, int row, int column, int rows, int columns) const {
        __syncwarp();  // no lane may still wait for the last phase: the phase after this one has the same parity
        if (threadIdx.x % 32 != 0) return;
        wait_for_reads<0>();  // TMA has read the last results
        int boxes = 0;
#pragma unroll
        for (int slab = 0; slab < tiles * parts; ++slab)
            boxes += row + slab / parts * 64 < rows && column + slab % parts * 64 < columns;
        arrive_expect(barrier, boxes * slab_bytes);
#pragma unroll
        for (int slab = 0; slab < tiles * parts; ++slab) {
            const int top = row + slab / parts * 64, first = column + slab % parts * 64;
            if (top < rows && first < columns) load(memory + slab * slab_bytes, map, barrier, first, top);
        }
    }
    __device__ __forceinline__ void wait() {
        wait_for(barrier, phase);
        phase ^= 1;
    }
    // Store combine(sum, operand).
    template <int count, class Combine>
    __device__ __forceinline__ void store_combined(const float (&d)[count], int tile, const TensorMap* map, int row,
                                                   int column, int rows, int columns, const Combine& combine) const {
        const unsigned lane = threadIdx.x % 32, line = lane % 16;
#pragma unroll
        for (int part = 0; part < parts; ++part) {
            const unsigned slab = memory + (tile * parts + part) * slab_bytes;
            if (row >= rows || column + part * 64 >= columns) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned at = slab + line * 128 + ((2 * j + lane / 16) ^ line % 8) * 16;
                unsigned operand[4];
                load_four(operand, at);
                const float* from = d + part * 32 + j * 8;
#pragma unroll
                for (int pair = 0; pair < 4; ++pair) {
                    const float low = __uint_as_float(operand[pair] << 16);
                    const float high = __uint_as_float(operand[pair] & 0xffff0000u);
                    operand[pair] = pack_bf16(combine(from[pair * 2], low), combine(from[pair * 2 + 1], high));
                }
                store_matrices(at, operand[0], operand[1], operand[2], operand[3]);
            }
            fence_async();
            __syncwarp();
            if (lane == 0) {
                store(map, slab, column + part * 64, row);
                commit_stores();
            }
        }
    }
};

}  // namespace opbench
