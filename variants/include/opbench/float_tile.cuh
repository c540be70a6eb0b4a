// Tiles of a float matrix product on CUDA cores: transpose into shared memory, multiply, store.
#pragma once

namespace opbench {

// Load four neighbours, or zeros if they are outside; p is 16-byte aligned.
__device__ __forceinline__ float4 load4(const float* __restrict__ p, bool inside) {
    return inside ? *reinterpret_cast<const float4*>(p) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Load four neighbours of which only the first `left` exist; the others become zero. p has any alignment.
__device__ __forceinline__ float4 load_upto4(const float* __restrict__ p, int left) {
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f, left > 3 ? p[3] : 0.0f);
}

// Store four neighbours to a row of n columns, from column `col` on. `aligned`: n is a multiple of 4.
__device__ __forceinline__ void store_upto4(float* p, const float* v, int col, int n, bool aligned) {
    if (aligned) {
        if (col < n) *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(v);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (col + j < n) p[j] = v[j];
    }
}

// Return the column of (k, i) in a transposed tile [bk][...]. Lanes that hold a float4 along k would store to the same
// banks; the xor distributes them over all 32 banks. It is a multiple of 4, so four neighbours stay together for float4
// loads.
template <int bk>
__device__ __forceinline__ int swizzle(int k, int i) {
    return i ^ (k / 4 * (128 / bk));
}

// Store a column of four values into a transposed tile [bk][width].
template <int bk>
__device__ __forceinline__ void store_transposed(float* tile, int width, int k, int i, float4 v) {
    float* p = tile + k * width + swizzle<bk>(k, i);
    p[0] = v.x;
    p[width] = v.y;
    p[2 * width] = v.z;
    p[3 * width] = v.w;
}

// One step of depth bk: 8 x 8 outputs per thread as four 4 x 4 squares, which are 4 * lanes_m rows and 4 * lanes_n
// columns apart, so that every load from shared memory has 16 bytes and no bank conflict.
template <int lanes_m, int lanes_n, int bk, int a_pitch, int b_pitch>
__device__ __forceinline__ void multiply_squares(const float (&a)[bk][a_pitch], const float (&b)[bk][b_pitch], int row,
                                                 int column, float (&sum)[8][8]) {
#pragma unroll
    for (int kk = 0; kk < bk; ++kk) {
        const float4 a0 = *reinterpret_cast<const float4*>(&a[kk][row]);
        const float4 a1 = *reinterpret_cast<const float4*>(&a[kk][row + 4 * lanes_m]);
        const float4 b0 = *reinterpret_cast<const float4*>(&b[kk][column]);
        const float4 b1 = *reinterpret_cast<const float4*>(&b[kk][column + 4 * lanes_n]);
        const float x[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
        const float y[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
    }
}

// The partition of a block's bm x bn outputs for multiply_squares: a warp covers 32 rows and 64 columns.
template <int bm, int bn>
struct SquareTiles {
    static constexpr int threads = bm * bn / 64, resident = threads == 256 ? 2 : 384 / threads;
    static constexpr int lanes_m = 4, lanes_n = 8, warps_n = bn / 64;
};

// The main loop over two buffers in shared memory: load(step) loads a step into registers while the previous step is
// multiplied; store(buffer) then fills the other buffer.
template <class Tiles, int bk, int a_pitch, int b_pitch, class Load, class Store>
__device__ __forceinline__ void multiply_steps(const float (&a)[2][bk][a_pitch], const float (&b)[2][bk][b_pitch],
                                               int row, int column, int steps, float (&sum)[8][8], const Load& load,
                                               const Store& store) {
    load(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) load(step + 1);
        multiply_squares<Tiles::lanes_m, Tiles::lanes_n>(a[step % 2], b[step % 2], row, column, sum);
        if (step + 1 < steps) store((step + 1) % 2);
        __syncthreads();
    }
}

// This thread's share of a step of a [rows][depth]: it is loaded along the depth and stored transposed. The tile has 4
// floats of padding, so that these stores have no bank conflict.
template <int threads, int bm, int bk>
struct TransposedRows {
    static constexpr int loads = bm * bk / threads;
    float next[loads];

    __device__ __forceinline__ void load(const float* __restrict__ a, int row0, int rows, int depth0, int depth) {
        const int at = depth0 + threadIdx.x % bk;
#pragma unroll
        for (int l = 0; l < loads; ++l) {
            const int row = row0 + threadIdx.x / bk + l * (threads / bk);
            next[l] = row < rows && at < depth ? a[(size_t)row * depth + at] : 0.0f;
        }
    }
    __device__ __forceinline__ void store(float (&tile)[bk][bm + 4]) const {
#pragma unroll
        for (int l = 0; l < loads; ++l) tile[threadIdx.x % bk][threadIdx.x / bk + l * (threads / bk)] = next[l];
    }
};

// Store this thread's float4 of a tile; `threads` threads hold them in the order of the tile's rows.
template <int threads, int bk, int columns, int loads>
__device__ __forceinline__ void store_quads(float (&tile)[bk][columns], const float4 (&next)[loads]) {
#pragma unroll
    for (int l = 0; l < loads; ++l) {
        const int e = threadIdx.x + l * threads;
        *reinterpret_cast<float4*>(&tile[e / (columns / 4)][e % (columns / 4) * 4]) = next[l];
    }
}

// Store the sums of multiply_squares to out [n][k][plane]: row0 + row is a filter k, column0 + column a pixel, of which
// `columns` exist. If the plane is a multiple of 4 (`plane4`), a group of 4 columns stays within one image and is
// 16-byte aligned.
template <int lanes_m, int lanes_n, bool plane4, class Plane>
__device__ __forceinline__ void store_planes(const float (&sum)[8][8], float* out, int row0, int row, long long column0,
                                             int k, Plane plane, long long columns) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const long long column = column0 + half * 4 * lanes_n;
        if (plane4) {
            if (column >= columns) continue;
            float* target = out + (column / plane * k + row0 + row) * plane + column % plane;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int m = i % 4 + i / 4 * 4 * lanes_m;
                const float* v = &sum[i][half * 4];
                if (row0 + row + m < k)
                    *reinterpret_cast<float4*>(target + (size_t)m * plane) = make_float4(v[0], v[1], v[2], v[3]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (column + j >= columns) continue;
                float* target = out + ((column + j) / plane * k + row0 + row) * plane + (column + j) % plane;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int m = i % 4 + i / 4 * 4 * lanes_m;
                    if (row0 + row + m < k) target[(size_t)m * plane] = sum[i][half * 4 + j];
                }
            }
        }
    }
}

// weight [k][depth] -> packed [depth][pitch], with zeros after filter k, so that the main kernel's loads are contiguous
// and 16 bytes.
__device__ __forceinline__ void pack_columns(const float* __restrict__ weight, float* __restrict__ packed, int k,
                                             int depth, int pitch) {
    __shared__ float tile[32][33];
    const int tiles_k = (pitch + 31) / 32;
    const int k0 = blockIdx.x % tiles_k * 32;
    const int depth0 = blockIdx.x / tiles_k * 32;
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + i, d = depth0 + threadIdx.x;
        tile[i][threadIdx.x] = ko < k && d < depth ? weight[(size_t)ko * depth + d] : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        const int ko = k0 + threadIdx.x, d = depth0 + i;
        if (ko < pitch && d < depth) packed[(size_t)d * pitch + ko] = tile[threadIdx.x][i];
    }
}

}  // namespace opbench
