// The epilogue of a gradient. For an image's gradient: add an existing gradient; set the gradient to 0 where the ReLU
// of the forward pass was inactive; do both in this order; or multiply by the slope of GELU (by tanh). The other
// operands have the output's shape and are read at the output's index. For a weight gradient: add the partial sums of
// the weights and of the bias in a fixed order.
#pragma once

#include <opbench/activations.cuh>
#include <opbench/partials.cuh>

namespace opbench {

enum Epilogue { plain, add, mask, gelu_tanh, add_mask };

template <Epilogue epilogue>
__device__ __forceinline__ float finished(float sum, float other) {
    if constexpr (epilogue == gelu_tanh) return sum * slope<Function::gelu_tanh>(other);
    return epilogue == add ? sum + other : epilogue == mask && !(other > 0.0f) ? 0.0f : sum;
}
// The two operands of add_mask.
template <class T>
struct SkipAndOut {
    const T *skip, *out;
    __device__ __forceinline__ SkipAndOut operator+(size_t offset) const { return {skip + offset, out + offset}; }
};
template <Epilogue epilogue, class T>
__device__ __forceinline__ float finished_at(float sum, const T* other, size_t at) {
    return finished<epilogue>(sum, epilogue == plain ? 0.0f : (float)other[at]);
}
template <Epilogue epilogue, class T>
__device__ __forceinline__ float finished_at(float sum, const SkipAndOut<T>& other, size_t at) {
    return finished<mask>(finished<add>(sum, (float)other.skip[at]), (float)other.out[at]);
}

// The elements of one load or store of 8 or 16 bytes.
template <class T, int count>
union __align__(sizeof(T) * count) Elements {
    T at[count];
    uint2 half;
    uint4 whole;
    static constexpr bool is_whole = sizeof(T) * count == 16;
    static_assert(is_whole || sizeof(T) * count == 8, "8 or 16 bytes");

    __device__ __forceinline__ void load(const T* from) {
        if constexpr (is_whole)
            whole = *reinterpret_cast<const uint4*>(from);
        else
            half = *reinterpret_cast<const uint2*>(from);
    }
    __device__ __forceinline__ void store(T* to) const {
        if constexpr (is_whole)
            *reinterpret_cast<uint4*>(to) = whole;
        else
            *reinterpret_cast<uint2*>(to) = half;
    }
};

// Compute to[0 .. vec) from sums and other[0 .. vec), with loads and stores of whole vectors.
template <Epilogue epilogue, int vec, class Out>
__device__ __forceinline__ void finish_vector(Out* to, const float (&sum)[vec], const Out* other) {
    Elements<Out, vec> packed;
    if constexpr (epilogue != plain) packed.load(other);
#pragma unroll
    for (int e = 0; e < vec; ++e)
        packed.at[e] = Out(finished<epilogue>(sum[e], epilogue == plain ? 0.0f : (float)packed.at[e]));
    packed.store(to);
}
// The same with the two operands of add_mask.
template <Epilogue epilogue, int vec, class Out>
__device__ __forceinline__ void finish_vector(Out* to, const float (&sum)[vec], const SkipAndOut<Out>& other) {
    Elements<Out, vec> skip;
    skip.load(other.skip);
    float both[vec];
#pragma unroll
    for (int e = 0; e < vec; ++e) both[e] = finished<add>(sum[e], (float)skip.at[e]);
    finish_vector<mask>(to, both, other.out);
}

// Compute to[0 .. 3] from sums and other[0 .. 3]. This is one store if the row length is a multiple of 4; only the
// first `left` elements exist.
template <Epilogue epilogue>
__device__ __forceinline__ void finish_four(float* to, const float4& sum, const float* other, int left, bool divide) {
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    if (divide) {
        finish_vector<epilogue>(to, v, other);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (e < left) to[e] = finished<epilogue>(v[e], epilogue == plain ? 0.0f : other[e]);
    }
}

// As store_tile: store out[row][column] for the warp's part that begins at (row0, column0), through the stages' memory.
// Here that memory holds floats, so that a sum is rounded only once, after the epilogue.
template <class Block, Epilogue epilogue, class Out, class Other, class Rows = SameRows>
__device__ __forceinline__ void store_gradient(const typename Block::Sums& sum, unsigned char* memory, Out* out,
                                               const Other& other, int row0, int column0, int rows, int columns,
                                               const Rows& place = Rows()) {
    constexpr int vec = 16 / sizeof(Out), pitch = Block::wn + 8, per_row = Block::wn / vec;
    static_assert(Block::threads / 32 * 16 * pitch * 4 <= Block::stages * Block::stage_bytes, "where the stages were");
    const int lane = threadIdx.x % 32;
    float* staged = reinterpret_cast<float*>(memory) + threadIdx.x / 32 * 16 * pitch;
#pragma unroll
    for (int mi = 0; mi < Block::tm; ++mi) {
#pragma unroll
        for (int e = 0; e < Block::tn * 2; ++e)
            store_pair(staged + (lane / 4 + e % 2 * 8) * pitch + e / 2 * 8 + lane % 4 * 2, sum[mi][e / 2][e % 2 * 2],
                       sum[mi][e / 2][e % 2 * 2 + 1]);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16 * per_row / 32; ++i) {
            const int e = lane + i * 32, row = row0 + mi * 16 + e / per_row, at = column0 + e % per_row * vec;
            if (row >= rows || at >= columns) continue;
            const float* from = staged + e / per_row * pitch + e % per_row * vec;
            const size_t to = (size_t)place(row) * columns + at;
            if (columns % vec == 0) {
                __align__(16) float v[vec];
#pragma unroll
                for (int f = 0; f < vec; f += 4)
                    *reinterpret_cast<float4*>(v + f) = *reinterpret_cast<const float4*>(from + f);
                finish_vector<epilogue>(out + to, v, other + (epilogue == plain ? 0 : to));
            } else {
#pragma unroll 1
                for (int f = 0; f < min(vec, columns - at); ++f)
                    out[to + f] = Out(finished_at<epilogue>(from[f], other, to + f));
            }
        }
        __syncwarp();
    }
}

// Add parts[z][] in index order, apply the epilogue, and store to out[]. A thread has one element, or four if `total`
// is a multiple of 4.
template <int parts_, Epilogue epilogue, class Out>
__device__ __forceinline__ void add_gradient_parts(const float* parts, Out* out, const Out* other, int total) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (total % 4 == 0) {
        const int first = index * 4;
        if (first >= total) return;
        float sum[4] = {};
#pragma unroll
        for (int z = 0; z < parts_; ++z) {
            const float4 v = *reinterpret_cast<const float4*>(parts + (size_t)z * total + first);
            sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
        finish_vector<epilogue>(out + first, sum, epilogue == plain ? nullptr : other + first);
    } else if (index < total) {
        float sum = 0.0f;
#pragma unroll
        for (int z = 0; z < parts_; ++z) sum += parts[(size_t)z * total + index];
        out[index] = Out(finished<epilogue>(sum, epilogue == plain ? 0.0f : (float)other[index]));
    }
}

// Store the sums of one column in to[row], if the warp's part that begins at (row0, column0) contains the column.
template <class Block, class Order>
__device__ __forceinline__ void store_column(const typename Block::Sums& sum, float* to, int row0, int column0,
                                             int rows, int column) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < Block::tm * Block::tn * 4; ++e) {
        const int row = row0 + Order::row(e / (Block::tn * 4), e / 2 % 2 * 8 + lane / 4);
        if (column == column0 + Order::column(e / 4 % Block::tn, lane % 4 * 2 + e % 2) && row < rows)
            to[row] = sum[e / (Block::tn * 4)][e / 4 % Block::tn][e % 4];
    }
}

// Compute dweight[row][column] as the sum of parts[z][row][column] in index order; the last blocks compute dbias[row]
// from bias_parts[z][row].
template <int parts_, bool with_bias>
__device__ __forceinline__ void add_weight_parts(const float* parts, const float* bias_parts, float* dweight,
                                                 float* dbias, int rows, int columns) {
    if constexpr (with_bias) {
        const int row = (int)((gridDim.x - 1 - blockIdx.x) * blockDim.x + threadIdx.x);
        if (row < (int)((rows + blockDim.x - 1) / blockDim.x * blockDim.x)) {
            float sum = 0.0f;
            for (int z = 0; z < parts_; ++z) sum += row < rows ? bias_parts[(size_t)z * rows + row] : 0.0f;
            if (row < rows) dbias[row] = sum;
            return;
        }
    }
    add_partials<parts_, false, false>(parts, (const float*)nullptr, dweight, rows * columns, columns);
}

// Copy one position of filters [k][positions][c] to a place of [c][places][k], in blocks of 32 x 8 threads.
template <class T>
__device__ __forceinline__ void turn_position(const T* filters, T* turned, int k, int c, int positions, int position,
                                              int places, int place) {
    __shared__ T tile[32][33];
    const int tiles_c = (c + 31) / 32, x = threadIdx.x;
    const int c0 = blockIdx.x % tiles_c * 32, k0 = blockIdx.x / tiles_c * 32;
    for (int y = threadIdx.y; y < 32; y += 8)
        if (k0 + y < k && c0 + x < c) tile[y][x] = filters[((size_t)(k0 + y) * positions + position) * c + c0 + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8)
        if (c0 + y < c && k0 + x < k) turned[((size_t)(c0 + y) * places + place) * k + k0 + x] = tile[x][y];
}

// Copy filters [k][positions][c] to [c][positions][k] with reversed positions; blockIdx.y is the position. The
// convolution of dout with these filters is the gradient of the original convolution's input.
template <class T>
__device__ __forceinline__ void turn_filters(const T* filters, T* turned, int k, int c, int positions) {
    turn_position(filters, turned, k, c, positions, blockIdx.y, positions, positions - 1 - (int)blockIdx.y);
}

}  // namespace opbench
