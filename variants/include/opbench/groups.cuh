// Tiles of rows that are sorted into groups, each with a matrix of its own: no tile has rows of two groups.
#pragma once

namespace opbench {

// The group of a tile, its first row, and the end of the group's rows; its number among the columns of tiles.
struct GroupTile {
    int group, row, end, column;
    __device__ __forceinline__ bool exists() const { return end > 0; }
};

// Finds tiles by increasing number. `ends` has the end of each group; tiles have `bm` rows. The rows of a group are
// walked first, for each of `columns` columns of tiles, so that concurrent blocks share columns of the group's matrix.
template <int bm>
struct GroupWalk {
    const int* const ends;
    const int groups, columns;
    int group = 0, start = 0, before = 0;  // the current group, its first row, the tiles of the groups before it

    __device__ __forceinline__ GroupWalk(const int* ends, int groups, int columns)
        : ends(ends), groups(groups), columns(columns) {}
    // Return tile `index`, which is at least the last one that was asked for; beyond the last tile, one without rows.
    __device__ __forceinline__ GroupTile operator()(int index) {
        for (; group < groups; ++group) {
            const int end = ends[group], rows = (end - start + bm - 1) / bm, within = index - before;
            if (within < rows * columns) return {group, start + within % rows * bm, end, within / rows};
            before += rows * columns, start = end;
        }
        return {0, 0, 0, 0};
    }
};

}  // namespace opbench
