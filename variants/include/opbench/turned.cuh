// A tile of a matrix turned where it lies in shared memory, between two copies by TMA: rows dense, as the engine brings
// and takes them.
#pragma once
#include <opbench/barrier.cuh>
#include <opbench/tma.cuh>

namespace opbench {

// [rows][columns] of elements of 4 or 2 bytes, by 256 threads. Threads take square pieces, 16 bytes wide, eight lanes along
// a diagonal of eight by eight of them: so their 16 bytes lie in different banks by rows and by columns alike.
template <int size, int rows, int columns>
struct TurnedTile {
    static constexpr int vec = 16 / size, bytes = rows * columns * size;
    static constexpr int per_row = columns / vec, per_column = rows / vec, pieces = per_row * per_column / 256;
    static_assert(per_row % 8 == 0 && per_column % 8 == 0 && pieces > 0, "whole squares of pieces, a thread has one");
    typedef unsigned Piece[vec][4];

    // work(piece, its row, its column) for the thread's pieces.
    template <class Work>
    __device__ __forceinline__ static void each(const Work& work) {
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int e = i * 256 + threadIdx.x, lane = e % 8, square = e / 64;
            work(i, square / (per_row / 8) * 8 + lane, square % (per_row / 8) * 8 + (lane ^ e / 8 % 8));
        }
    }
    // Word `word` of column `j` of a piece.
    __device__ __forceinline__ static unsigned turned(const Piece& piece, int j, int word) {
        if constexpr (size == 4)
            return piece[word][j];
        else
            return __byte_perm(piece[word * 2][j / 2], piece[word * 2 + 1][j / 2], j % 2 ? 0x7632 : 0x5410);
    }
    // To [columns][rows], by all threads; the copy engine sees it after the block's next barrier.
    __device__ __forceinline__ static void turn(uint4* tile) {
        Piece piece[pieces];
        each([&](int i, int row, int column) {
#pragma unroll
            for (int j = 0; j < vec; ++j) {
                const uint4 x = tile[(row * vec + j) * per_row + column];
                piece[i][j][0] = x.x, piece[i][j][1] = x.y, piece[i][j][2] = x.z, piece[i][j][3] = x.w;
            }
        });
        __syncthreads();
        each([&](int i, int row, int column) {
#pragma unroll
            for (int j = 0; j < vec; ++j)
                tile[(column * vec + j) * per_column + row] = make_uint4(
                    turned(piece[i], j, 0), turned(piece[i], j, 1), turned(piece[i], j, 2), turned(piece[i], j, 3));
        });
        fence_async();
    }
    // By a block: fetch(address, barrier) copies the tile, put(address) stores it.
    template <class Fetch, class Put>
    __device__ __forceinline__ static void move(uint4* tile, const Fetch& fetch, const Put& put) {
        __shared__ unsigned long long barrier;
        const unsigned memory = shared_address(tile), arrived = shared_address(&barrier);
        if (threadIdx.x == 0) {
            barrier_init(arrived, 1);
            barrier_init_fence();
            arrive_expect(arrived, bytes);
            fetch(memory, arrived);
        }
        __syncthreads();
        wait_for(arrived, 0);
        turn(tile);
        __syncthreads();
        if (threadIdx.x > 0) return;
        put(memory);
        commit_stores();
        wait_for_stores<0>();
    }
};

}  // namespace opbench
