// Tiles of rows that are sorted into groups, each with its own matrix: no tile has rows of two groups.
#pragma once

namespace opbench {

// The group of a tile, its first row, and the end of the group's rows; the tile's column, in units of tiles.
struct GroupTile {
    int group, row, end, column;
    __device__ __forceinline__ bool exists() const { return end > 0; }
};

// Find tiles by increasing index. `ends` has the end of each group; tiles have `bm` rows. For each of `columns` columns
// of tiles, the rows of a group come first, so that concurrent blocks share columns of the group's matrix.
template <int bm>
struct GroupScheduler {
    const int* const ends;
    const int groups, columns;
    int group = 0, start = 0, before = 0;  // the current group, its first row, the tiles of the groups before it

    __device__ __forceinline__ GroupScheduler(const int* ends, int groups, int columns)
        : ends(ends), groups(groups), columns(columns) {}
    // Return tile `index`, which must not be smaller than in the previous call; after the last tile, return one without
    // rows.
    __device__ __forceinline__ GroupTile operator()(int index) {
        for (; group < groups; ++group) {
            const int end = ends[group], rows = (end - start + bm - 1) / bm, within = index - before;
            if (within < rows * columns) return {group, start + within % rows * bm, end, within / rows};
            before += rows * columns, start = end;
        }
        return {0, 0, 0, 0};
    }
};
template <int bm>
using GroupWalk = GroupScheduler<bm>;  // the former name

}  // namespace opbench
