// Rows in the registers of the threads that share them, for normalisations on CUDA cores.
#pragma once
#include <opbench/vectors.cuh>

namespace opbench {

// The vectors of a row that one of its `threads` threads (threadIdx.x) holds. They are `threads` vectors apart, so that
// neighbouring threads access neighbouring vectors.
template <class T, int cols, int lanes, int threads>
struct RowPart {
    static constexpr int vectors = cols / lanes, items = (vectors + threads - 1) / threads, width = lanes;
    typedef Packed<T, lanes> Pack;
    Pack pack[items];

    // index: return the index of vector k in the row. has_vector: return whether the row has this vector.
    static __device__ __forceinline__ int index(int k) { return k * threads + threadIdx.x; }
    static __device__ __forceinline__ bool has_vector(int k) { return vectors % threads == 0 || index(k) < vectors; }

    // Load a row; elements after its end, or in a row that is not `inside` the tensor, become zero.
    template <bool stream>
    __device__ __forceinline__ void load(const T* tensor, size_t row, bool inside) {
        const Pack* source = reinterpret_cast<const Pack*>(tensor) + row * vectors;
#pragma unroll
        for (int k = 0; k < items; ++k) {
            pack[k] = Pack();
            if (inside && has_vector(k)) pack[k] = load_packed<stream>(source + index(k));
        }
    }

    template <bool stream>
    __device__ __forceinline__ void store(T* tensor, size_t row) const {
        Pack* target = reinterpret_cast<Pack*>(tensor) + row * vectors;
#pragma unroll
        for (int k = 0; k < items; ++k) {
            if (has_vector(k)) store_packed<stream>(target + index(k), pack[k]);
        }
    }

    __device__ __forceinline__ float value(int k, int lane) const { return lane_of<T>(pack[k], lane); }
    __device__ __forceinline__ void set(int k, int lane, float value) {
        reinterpret_cast<T*>(&pack[k])[lane] = (T)value;
    }

    // Add another row; the sums are rounded to the type of the row.
    __device__ __forceinline__ void add(const RowPart& other) {
#pragma unroll
        for (int k = 0; k < items; ++k) {
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) set(k, lane, value(k, lane) + other.value(k, lane));
        }
    }

    // Return the sum of this thread's elements.
    __device__ __forceinline__ float sum() const {
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < items; ++k) {
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) total += value(k, lane);
        }
        return total;
    }

    // Return the sum of the squares of the differences between this thread's elements and `centre`.
    __device__ __forceinline__ float squares(float centre) const {
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < items; ++k) {
            if (!has_vector(k)) break;
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) {
                const float difference = value(k, lane) - centre;
                total += difference * difference;
            }
        }
        return total;
    }
};

// A float for each column of a thread's part of a row, in the same order.
template <class Row>
struct ColumnPart {
    static constexpr int floats = Row::width < 4 ? Row::width : 4;  // floats of one access
    float value[Row::items][Row::width] = {};

    __device__ __forceinline__ void load(const float* tensor) {
        const auto* source = reinterpret_cast<const Packed<float, floats>*>(tensor);
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
            if (!Row::has_vector(k)) break;
#pragma unroll
            for (int part = 0; part < Row::width / floats; ++part) {
                const auto pack = source[Row::index(k) * (Row::width / floats) + part];
#pragma unroll
                for (int i = 0; i < floats; ++i) value[k][part * floats + i] = lane_of<float>(pack, i);
            }
        }
    }

    __device__ __forceinline__ void store(float* tensor) const {
        auto* target = reinterpret_cast<Packed<float, floats>*>(tensor);
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
            if (!Row::has_vector(k)) break;
#pragma unroll
            for (int part = 0; part < Row::width / floats; ++part) {
                Vector<float, floats> pack;
#pragma unroll
                for (int i = 0; i < floats; ++i) pack.lane(i) = value[k][part * floats + i];
                target[Row::index(k) * (Row::width / floats) + part] = pack.raw;
            }
        }
    }
};

// Compute the sums over the `threads` threads of a row (threadIdx.y), in each of them; `shared` has a line per row.
template <int threads, int count, int warps>
__device__ __forceinline__ void row_sums(float (&value)[count], float (*shared)[warps][count]) {
#pragma unroll
    for (int step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < count; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], step);
    }
    if (warps == 1) return;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) shared[threadIdx.y][threadIdx.x / 32][i] = value[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
        value[i] = shared[threadIdx.y][0][i];
#pragma unroll
        for (int warp = 1; warp < warps; ++warp) value[i] += shared[threadIdx.y][warp][i];
    }
}

// Add the parts of `count` sums per column, from part[i] [parts][cols] to sum[i] [cols], in blocks of 32 x 16 threads.
template <int count>
__device__ __forceinline__ void add_column_parts(const float* const (&part)[count], float* const (&sum)[count],
                                                 int parts, int cols) {
    constexpr int height = 16;
    __shared__ float shared[count][height][32];
    const int c = blockIdx.x * 32 + threadIdx.x;
    float value[count] = {};
    if (c < cols) {
#pragma unroll 4
        for (int p = threadIdx.y; p < parts; p += height) {
#pragma unroll
            for (int i = 0; i < count; ++i) value[i] += part[i][(size_t)p * cols + c];
        }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) shared[i][threadIdx.y][threadIdx.x] = value[i];
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols) return;
#pragma unroll
    for (int y = 1; y < height; ++y) {
#pragma unroll
        for (int i = 0; i < count; ++i) value[i] += shared[i][y][threadIdx.x];
    }
#pragma unroll
    for (int i = 0; i < count; ++i) sum[i][c] = value[i];
}

}  // namespace opbench
