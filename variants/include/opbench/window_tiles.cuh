// Tiles of a pooling's gradient: which windows cover which pixels of a tile. The compiler knows all of this, because
// tiles begin at multiples of the stride.
#pragma once
#include <opbench/vectors.cuh>

namespace opbench {

constexpr int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// Tiles of rows x columns strides of an image of h x w pixels.
template <int rows, int columns, int stride, int window, int padding, int h, int w>
struct WindowTiles {
    static constexpr int tile_rows = rows * stride, tile_columns = columns * stride;  // pixels
    static constexpr int row_tiles = (h + tile_rows - 1) / tile_rows;
    static constexpr int column_tiles = (w + tile_columns - 1) / tile_columns;
    // The first window that covers a tile, counted from the one that starts (apart from the padding) where the tile
    // starts.
    static constexpr int first = -floor_div(window - 1 - padding, stride);
    // rows of windows that cover a tile
    static constexpr int window_rows = (tile_rows - 1 + padding) / stride - first + 1;
    static constexpr int window_columns = (tile_columns - 1 + padding) / stride - first + 1;
    static constexpr int before = first * stride - padding;  // start of the first window, relative to the tile's start
    static constexpr int input_rows = (window_rows - 1) * stride + window;  // pixels that these windows cover
    static constexpr int input_columns = (window_columns - 1) * stride + window;

    // Return the widest vector, with at most `most` elements, of the gradients that a tile needs from a row of q
    // windows.
    static constexpr int gradient_width(int most, int q) {
        return first == 0 && window_columns == columns && q % columns == 0 ? widest_vector(most, columns, columns) : 1;
    }

    // Call visit(a, b, r, s) for each window (a, b) that contains pixel (y, x) of the tile; the pixel is at (r, s) of
    // the window.
    template <class Visit>
    __device__ __forceinline__ static void for_each_window(int y, int x, const Visit& visit) {
#pragma unroll
        for (int a = 0; a < window_rows; ++a) {
#pragma unroll
            for (int b = 0; b < window_columns; ++b) {
                const int r = y - before - a * stride, s = x - before - b * stride;
                if (r < 0 || r >= window || s < 0 || s >= window) continue;
                visit(a, b, r, s);
            }
        }
    }
};

}  // namespace opbench
