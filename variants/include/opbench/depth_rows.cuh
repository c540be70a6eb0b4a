// Load two matrices stored by rows of the depth, a [depth][m] and b [depth][n], as in a weight gradient, whose depth is
// the batch. Both are copied in their stored order, and transposed between shared memory and registers.
#pragma once

#include <opbench/epilogue.cuh>
#include <opbench/matrix_columns.cuh>

namespace opbench {

// The layout of a step's rows in a stage: `width` elements each, from byte `base` on.
template <class Block, int width, int base>
struct Wide {
    static constexpr int in_row = width / Block::vec, fill_rows = Block::threads / in_row;
    static constexpr int passes = Block::bk / fill_rows;
    static constexpr bool words = sizeof(typename Block::T) == 4;  // ldmatrix transposes only 16-bit elements
    static_assert(Block::wk == 1 && in_row >= 8 && Block::bk % fill_rows == 0 && fill_rows % 4 == 0,
                  "whole lines of 128 bytes, copied in whole passes");

    // The swizzle avoids bank conflicts for ldmatrix, which reads one chunk of eight rows, and for eight lanes that
    // read two neighbouring chunks of every other row.
    __device__ __forceinline__ static int swizzled_offset(int row, int chunk) {
        return base + (row * in_row + (chunk ^ row % 8)) * 16;
    }
    // Return the address of the l-th pass of a thread whose first chunk is at `to`.
    __device__ __forceinline__ static int pass(int to, int l) {
        return (to ^ (fill_rows % 8 == 0 || l % 2 == 0 ? 0 : 64)) + l * Block::threads * 16;
    }
};
template <class Block>
using WideA = Wide<Block, Block::bm, 0>;
template <class Block>
using WideB = Wide<Block, Block::bn, Block::bm * row_bytes>;

// Copy rows of a matrix [rows][columns]: each thread copies the same chunk of every fill_rows-th row.
// aligned: rows are whole chunks. ones: a column of ones follows the last column; its products are the row sums of the
// other operand.
template <class Block, class Layout, bool aligned, bool ones = false>
struct DepthRows {
    typedef typename Block::T T;

    const T* from;
    int to, columns, rows_left, columns_left;  // counted from this thread's chunk

    __device__ __forceinline__ DepthRows(const T* matrix, int first, int columns, int start, int end)
        : columns(columns) {
        const int row = threadIdx.x / Layout::in_row, chunk = threadIdx.x % Layout::in_row;
        from = matrix + (size_t)(start + row) * columns + first + chunk * Block::vec;
        to = Layout::swizzled_offset(row, chunk);
        rows_left = end - start - row, columns_left = columns - first - chunk * Block::vec;
    }
    __device__ __forceinline__ void copy(unsigned char* stage) {
        // unrolling the element-by-element path would need too many registers
        constexpr int unrolled = aligned ? 16 : 1;
#pragma unroll unrolled
        for (int l = 0; l < Layout::passes; ++l) {
            const int row = l * Layout::fill_rows;
            unsigned char* const at = stage + Layout::pass(to, l);
            if (ones && columns_left <= 0)
                one(at);
            else if (ones && !aligned && columns_left < Block::vec)
                copy_last(at, from + (size_t)row * columns, row < rows_left);
            else
                copy_numbers<Block::vec, aligned>(at, from + (size_t)row * columns, row < rows_left ? columns_left : 0);
        }
        from += (size_t)Block::bk * columns, rows_left -= Block::bk;
    }
    // Write the column of ones; the rest of its chunk is zero. It has as many rows as the other operand.
    __device__ __forceinline__ void one(unsigned char* at) const {
        *reinterpret_cast<uint4*>(at) = make_uint4(0u, 0u, 0u, 0u);
        if (columns_left == 0) *reinterpret_cast<T*>(at) = T(1.0f);
    }
    __device__ __forceinline__ void copy_last(unsigned char* at, const T* row, bool exists) const {
#pragma unroll 1
        for (int e = 0; e < Block::vec; ++e)
            reinterpret_cast<T*>(at)[e] = e == columns_left ? T(1.0f) : exists && e < columns_left ? row[e] : T(0.0f);
    }
};

// Fill a stage of two such matrices.
template <class Block, class A, class B>
struct BothByDepth {
    static constexpr bool pads_with_zeros = true;  // copies zeros after the end of the depth
    unsigned char* const memory;
    A a;
    B b;

    __device__ __forceinline__ BothByDepth(unsigned char* memory, const A& a, const B& b)
        : memory(memory), a(a), b(b) {}
    __device__ __forceinline__ void operator()(int slot) {
        a.copy(memory + slot * Block::stage_bytes);
        b.copy(memory + slot * Block::stage_bytes);
    }
};

// The order of a warp's rows and columns: each chunk has one element of each of two or four mma tiles.
template <bool chunks>
struct DepthOrder {
    static constexpr bool pairs = !chunks;
    __device__ __forceinline__ static int row(int tile, int row) {
        return chunks ? tile / 2 * 32 + row % 8 * 4 + tile % 2 * 2 + row / 8 : InOrder::row(tile, row);
    }
    __device__ __forceinline__ static int column(int tile, int column) {
        return chunks ? tile / 4 * 32 + column * 4 + tile % 4 : InOrder::column(tile, column);
    }
};

// A warp that reads fragments of such stages.
template <class Block>
struct DepthWarp {
    // The words of a chunk belong to several tiles; a product that multiplies its operands in place needs words of one
    // tile.
    static constexpr bool words = WideA<Block>::words, by_chunks = words && Block::Product::rewrites;
    typedef DepthOrder<by_chunks> Order;
    static_assert(!by_chunks || Block::wm % 32 == 0 && Block::wn % 32 == 0, "eight lanes read 32 columns");
    int m, n;  // the warp's first row and column
    unsigned a_at, b_at;

    // Lane l reads one chunk of a row of 16 in depth; or it reads rows 2 (l % 4) and the next one, either chunk l / 4
    // or the word of column l / 4. Any order of the depth is valid if both operands use it.
    __device__ __forceinline__ DepthWarp() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        m = warp / Block::warps_n * Block::wm, n = warp % Block::warps_n * Block::wn;
        const int a_chunk = m / Block::vec, b_chunk = n / Block::vec;
        if constexpr (words) {
            const int chunk = by_chunks ? lane / 4 : lane / 16, word = by_chunks ? 0 : lane / 4 % 4 * 4;
            a_at = WideA<Block>::swizzled_offset(lane % 4 * 2, a_chunk + chunk) + word;
            b_at = WideB<Block>::swizzled_offset(lane % 4 * 2, b_chunk + chunk) + word;
        } else {
            a_at = WideA<Block>::swizzled_offset(lane % 8 + lane / 16 * 8, a_chunk + lane / 8 % 2);
            b_at = WideB<Block>::swizzled_offset(lane % 16, b_chunk + lane / 16);
        }
    }
    __device__ __forceinline__ void fetch(unsigned stage, int slice, typename Block::A& a, typename Block::B& b) const {
        constexpr int a_row = WideA<Block>::in_row * 16, b_row = WideB<Block>::in_row * 16;
        const unsigned a_from = stage + slice * 2 * Block::vec * a_row, b_from = stage + slice * 2 * Block::vec * b_row;
        typedef ColumnsWarp<Block> Load;
        if constexpr (by_chunks) {
#pragma unroll
            for (int e = 0; e < Block::tm; ++e) {
                const int i = e / 2 * 2, half = e % 2 * 2;
                load_chunk(a[i][half], a[i][half + 1], a[i + 1][half], a[i + 1][half + 1],
                           a_from + i * 64 + (e % 2 ? (a_at ^ 16) + a_row : a_at));
            }
#pragma unroll
            for (int e = 0; e < Block::tn / 2; ++e) {
                const int j = e / 2 * 2, half = e % 2;
                load_chunk(b[j][half], b[j][half + 2], b[j + 1][half], b[j + 1][half + 2],
                           b_from + j * 64 + (half ? (b_at ^ 16) + b_row : b_at));
            }
        } else if constexpr (words) {  // eight columns are two chunks
#pragma unroll
            for (int e = 0; e < Block::tm * 4; ++e) {
                const int j = e / 4 * 2 + e % 2, half = e % 4 / 2;
                a[e / 4][e % 4] =
                    Load::load_word(a_from + (a_at ^ (j % 4 * 32 + half * 16)) + j / 4 * 128 + half * a_row);
            }
#pragma unroll
            for (int e = 0; e < Block::tn * 2; ++e) {
                const int j = e / 2, half = e % 2;
                b[j / 2][j % 2 * 2 + half] =
                    Load::load_word(b_from + (b_at ^ (j % 4 * 32 + half * 16)) + j / 4 * 128 + half * b_row);
            }
        } else {
#pragma unroll
            for (int i = 0; i < Block::tm; ++i) load_matrices_transposed(a[i], a_from + (a_at ^ i * 32));
#pragma unroll
            for (int j = 0; j < Block::tn / 2; ++j) load_matrices_transposed(b[j], b_from + (b_at ^ j * 32));
        }
    }
};

}  // namespace opbench
