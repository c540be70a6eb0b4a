// Load lines of bf16 or float into shared memory as floats, with all threads of a block and several loads in flight at
// once.
#pragma once

namespace opbench {

// Load up to `lines` lines of `length` elements, `stride` apart, to to[lines][pitch]. Only `valid_rows` lines and
// `valid_columns` elements exist; others become zero. With `with_ones`, column `ones` is set to 1.
template <int threads, int lines, int length, int pitch, bool use_vectors, bool with_ones = false, class T>
__device__ __forceinline__ void load_rows_to_shared(float* to, const T* __restrict__ from, int stride, int valid_rows,
                                                    int valid_columns, int ones = -1) {
    constexpr int vec = use_vectors ? 4 : 1, per_line = length / vec, all = lines * per_line;
    constexpr int at_once = (all + threads - 1) / threads < 8 ? (all + threads - 1) / threads : 8;
    union __align__(vec * sizeof(T)) Elements {
        T elements[vec];
        uint2 bits[vec * sizeof(T) >= 8 ? vec * sizeof(T) / 8 : 1];
        __device__ Elements() {}
    };
    for (int begin = threadIdx.x; begin < all; begin += at_once * threads) {
        float values[at_once][vec];
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int e = begin + u * threads, line = e / per_line, x = e % per_line * vec;
            const bool inside = e < all && line < valid_rows && x < valid_columns;
            const T* const source = from + (size_t)line * stride + x;
            Elements read;
            if (vec == 1)
                read.elements[0] = inside ? *source : T(0.0f);
            else if (sizeof(T) == 2)
                read.bits[0] = inside ? *reinterpret_cast<const uint2*>(source) : make_uint2(0u, 0u);
            else
                *reinterpret_cast<uint4*>(read.bits) =
                    inside ? *reinterpret_cast<const uint4*>(source) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
            for (int v = 0; v < vec; ++v) values[u][v] = with_ones && x + v == ones ? 1.0f : (float)read.elements[v];
        }
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int e = begin + u * threads;
            if (e >= all) continue;
            float* const target = to + e / per_line * pitch + e % per_line * vec;
            if (vec == 4)
                *reinterpret_cast<float4*>(target) =
                    make_float4(values[u][0], values[u][1 % vec], values[u][2 % vec], values[u][3 % vec]);
            else
                *target = values[u][0];
        }
    }
}

// Load `count` lines, from line `first` on, of an image with `height` lines of `width` elements, to to[count][pitch].
// A line begins `left` elements before the image's line. Elements outside of the image become zero.
template <int threads, int count, int length, int pitch, int left, int width, int height, class T>
__device__ __forceinline__ void load_image_rows_to_shared(float* to, const T* __restrict__ from, int first) {
    constexpr int vec = width % 4 == 0 && left % 4 == 0 ? 4 : 1, per_line = length / vec, all = count * per_line;
    constexpr int at_once = (all + threads - 1) / threads < 8 ? (all + threads - 1) / threads : 8;
    union __align__(vec * sizeof(T)) Elements {
        T elements[vec];
        uint2 bits[vec * sizeof(T) >= 8 ? vec * sizeof(T) / 8 : 1];
        __device__ Elements() {}
    };
    for (int begin = threadIdx.x; begin < all; begin += at_once * threads) {
        float values[at_once][vec];
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int e = begin + u * threads, line = first + e / per_line, x = e % per_line * vec - left;
            const bool inside = e < all && (unsigned)line < (unsigned)height && (unsigned)x < (unsigned)width;
            const T* const source = from + line * width + x;
            Elements read;
            if (vec == 1)
                read.elements[0] = inside ? *source : T(0.0f);
            else if (sizeof(T) == 2)
                read.bits[0] = inside ? *reinterpret_cast<const uint2*>(source) : make_uint2(0u, 0u);
            else
                *reinterpret_cast<uint4*>(read.bits) =
                    inside ? *reinterpret_cast<const uint4*>(source) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
            for (int v = 0; v < vec; ++v) values[u][v] = (float)read.elements[v];
        }
#pragma unroll
        for (int u = 0; u < at_once; ++u) {
            const int e = begin + u * threads;
            float* const target = to + e / per_line * pitch + e % per_line * vec;
            if (e >= all) continue;
            if (vec == 4 && pitch % 4 == 0)
                *reinterpret_cast<float4*>(target) =
                    make_float4(values[u][0], values[u][1 % vec], values[u][2 % vec], values[u][3 % vec]);
            else
#pragma unroll
                for (int v = 0; v < vec; ++v) target[v] = values[u][v];
        }
    }
}

// Load `count` neighbours from shared memory by the widest loads that `count` and the distance between such groups
// allow. The distance is a multiple of `distance` floats.
template <int distance, int count>
__device__ __forceinline__ void load_group(float (&to)[count], const float* from) {
    constexpr int vec = count % 4 == 0 && distance % 4 == 0 ? 4 : count % 2 == 0 && distance % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int v = 0; v < count; v += vec) {
        if (vec == 4) {
            const float4 four = *reinterpret_cast<const float4*>(from + v);
            to[v] = four.x, to[(v + 1) % count] = four.y, to[(v + 2) % count] = four.z, to[(v + 3) % count] = four.w;
        } else if (vec == 2) {
            const float2 two = *reinterpret_cast<const float2*>(from + v);
            to[v] = two.x, to[(v + 1) % count] = two.y;
        } else {
            to[v] = from[v];
        }
    }
}

}  // namespace opbench
