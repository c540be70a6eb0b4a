// The gradient of layer and RMS normalisation, for kernels on CUDA cores: a row is in the registers of its threads.
#pragma once
#include <opbench/row_norm.cuh>

namespace opbench {

// The tensors of such a gradient: x, dout, dsum, dx [rows][cols]; weight [cols]; mean, rstd [rows]; part_weight,
// part_bias [parts][cols], which receive the sums over the rows of each part. RMS normalisation has no mean and no
// bias. dsum is the gradient of the sum that was normalised, or null.
template <class T>
struct NormGradient {
    const T *x, *dout;
    const float *weight, *mean, *rstd;
    const T* dsum;
    T* dx;
    float *part_weight, *part_bias;
};

// Compute the gradient with `blocks` blocks of `height` rows (threadIdx.y), each with `threads` threads. `centred`: the
// mean was subtracted. `added`: dsum is added. A block loads its next rows while it computes the current ones.
template <class Row, bool centred, bool added, bool stream, int blocks, int height, int threads, class T>
__device__ __forceinline__ void store_norm_gradient(const NormGradient<T>& of, int rows) {
    constexpr int cols = Row::vectors * Row::width, warps = (threads + 31) / 32, count = centred ? 2 : 1;
    // of this row and of the next one, so that one barrier per row is enough
    __shared__ float shared[2][height][warps][count];
    constexpr int step = blocks * height;
    // may exceed the last row: all threads take part in shuffles and barriers
    int row = blockIdx.x * height + threadIdx.y;
    Row x_row, dout_row, next_x, next_dout;
    x_row.template load<stream>(of.x, row, row < rows);
    dout_row.template load<stream>(of.dout, row, row < rows);
    ColumnPart<Row> weights, of_weight, of_bias;
    weights.load(of.weight);
    int buffer = 0;
    for (int first = blockIdx.x * height; first < rows; first += step, row += step, buffer ^= 1) {
        next_x.template load<stream>(of.x, row + step, row + step < rows);
        next_dout.template load<stream>(of.dout, row + step, row + step < rows);
        Row sum_gradient;
        if constexpr (added) sum_gradient.template load<stream>(of.dsum, row, row < rows);
        const float factor = row < rows ? of.rstd[row] : 0.0f;
        float centre = 0.0f;
        if constexpr (centred) centre = row < rows ? of.mean[row] : 0.0f;
        const auto normalised = [&](int k, int lane) {
            return (centred ? x_row.value(k, lane) - centre : x_row.value(k, lane)) * factor;
        };
        float sums[count] = {};
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
#pragma unroll
            for (int lane = 0; lane < Row::width; ++lane) {
                const float slope = dout_row.value(k, lane), product = slope * normalised(k, lane);
                of_weight.value[k][lane] += product;
                sums[0] += product * weights.value[k][lane];
                if constexpr (centred) {
                    of_bias.value[k][lane] += slope;
                    sums[1] += slope * weights.value[k][lane];
                }
            }
        }
        row_sums<threads>(sums, shared[buffer]);
#pragma unroll
        for (int k = 0; k < Row::items; ++k) {
#pragma unroll
            for (int lane = 0; lane < Row::width; ++lane) {
                float slope = dout_row.value(k, lane) * weights.value[k][lane];
                if constexpr (centred) slope -= sums[1] / cols;
                float gradient = factor * (slope - normalised(k, lane) * (sums[0] / cols));
                if constexpr (added) gradient += sum_gradient.value(k, lane);
                x_row.set(k, lane, gradient);
            }
        }
        if (row < rows) x_row.template store<stream>(of.dx, row);
        x_row = next_x;
        dout_row = next_dout;
    }
    const size_t part = blockIdx.x * height + threadIdx.y;
    of_weight.store(of.part_weight + part * cols);
    if constexpr (centred) of_bias.store(of.part_bias + part * cols);
}

}  // namespace opbench
