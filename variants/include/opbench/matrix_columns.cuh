// Load a matrix a [rows][depth] and the columns of b [depth][columns], which is stored by rows. b is copied in its
// stored order and transposed between shared memory and registers.
#pragma once

#include <opbench/matrix_rows.cuh>
#include <opbench/stages.cuh>

namespace opbench {

// The rows of b of a step, for all of its tiles, are consecutive; each has bn elements.
template <class Block>
struct Columns {
    static constexpr int in_row = Block::bn / Block::vec, fill_rows = Block::threads / in_row;
    static constexpr int step_rows = Block::bk, tile_rows = Block::bk / Block::wk;
    static constexpr bool words = sizeof(typename Block::T) == 4;  // ldmatrix transposes only 16-bit elements

    // The swizzle avoids bank conflicts for ldmatrix, which reads one chunk of eight rows, and for a warp that reads
    // words of two neighbouring chunks of four rows. If a row has four chunks, two rows share all banks.
    __device__ __forceinline__ static int swizzle(int row) {
        return words ? row % 4 * 2 : in_row >= 8 ? row % 8 : row / 2 % 4;
    }
    __device__ __forceinline__ static int swizzled_offset(int row, int chunk) {
        return Block::wk * Block::bm * row_bytes + (row * in_row + (chunk ^ swizzle(row))) * 16;
    }
    static_assert(step_rows % fill_rows == 0 && fill_rows % (words ? 4 : 8) == 0, "a step is copied in whole passes");
};

// Fill a stage of both. a_aligned, b_aligned: their rows are whole chunks.
template <class Block, bool a_aligned, bool b_aligned>
struct RowsAndColumns {
    typedef typename Block::T T;
    typedef Columns<Block> Layout;
    static constexpr bool pads_with_zeros = true;  // copies zeros after the end of the depth

    Rows<Block, Block::bm, a_aligned> a;
    const T* b;  // this thread's chunk in its first row
    unsigned char *a_to, *b_to;
    int n, left, columns_left, rows_left;  // counted from this thread's chunks

    // a [m][depth] from row m0 on, b [depth][n] from column n0 on, both from `start` to `end` of the depth.
    __device__ __forceinline__ RowsAndColumns(unsigned char* memory, const T* a, const T* b_, int m0, int n0, int m,
                                              int n, int depth, int start, int end)
        : a(a, m0, m, depth, start), n(n) {
        const int row = threadIdx.x / Layout::in_row, chunk = threadIdx.x % Layout::in_row;
        a_to = memory + swizzled_offset(threadIdx.x / chunks, threadIdx.x % chunks),
        b_to = memory + Layout::swizzled_offset(row, chunk);
        b = b_ + (size_t)(start + row) * n + n0 + chunk * Block::vec;
        left = end - start - (int)threadIdx.x % chunks * Block::vec;
        columns_left = n - n0 - chunk * Block::vec;
        rows_left = columns_left > 0 ? end - start - row : 0;
    }
    // Copy the next step to stage `slot`.
    __device__ __forceinline__ void operator()(int slot) {
        a.copy(a_to + slot * Block::stage_bytes, left);
        unsigned char* const to = b_to + slot * Block::stage_bytes;
        constexpr int unrolled = b_aligned ? 16 : 1;
#pragma unroll unrolled
        for (int l = 0; l < Layout::step_rows / Layout::fill_rows; ++l) {
            const int row = l * Layout::fill_rows;
            copy_numbers<Block::vec, b_aligned>(to + l * Block::threads * 16, b + (size_t)row * n,
                                                row >= rows_left ? 0
                                                : b_aligned      ? Block::vec
                                                                 : columns_left);
        }
        b += (size_t)Layout::step_rows * n;
        left -= Block::bk, rows_left -= Layout::step_rows;
    }
};

// A warp that reads fragments of such a stage.
template <class Block>
struct ColumnsWarp : Warp<Block> {
    typedef Columns<Block> Layout;
    unsigned b_at;

    // Lane l reads one chunk of row l % 16 of two tiles of b, or words of rows l % 4 and l % 4 + 4, column l / 4.
    __device__ __forceinline__ ColumnsWarp() {
        const int lane = threadIdx.x % 32, first = this->tile * Layout::tile_rows;
        b_at =
            Layout::swizzled_offset(first + (Layout::words ? lane % 4 : lane % 16), this->n / Block::vec + lane / 16) +
            (Layout::words ? lane / 4 % 4 * 4 : 0);
    }
    __device__ __forceinline__ void fetch(unsigned stage, int slice, typename Block::A& a, typename Block::B& b) const {
        this->fetch_a(stage, slice, a);
        const unsigned from = stage + slice * (2 * Block::vec * Layout::in_row * 16);
#pragma unroll
        // eight columns: two chunks of 32-bit words, or one chunk of 16-bit elements
        for (int j = 0; j < Block::tn; ++j) {
            if constexpr (Layout::words) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    b[j / 2][j % 2 * 2 + half] =
                        load_word(from + (b_at ^ j % 4 * 32) + j / 4 * 128 + half * 4 * Layout::in_row * 16);
            } else if (j % 2 == 0) {
                load_matrices_transposed(b[j / 2], from + (b_at ^ j * 16));
            }
        }
    }
    __device__ __forceinline__ static unsigned load_word(unsigned at) {
        unsigned word;
        asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(at) : "memory");
        return word;
    }
};

}  // namespace opbench
