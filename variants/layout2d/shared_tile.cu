// /// opbench
// title     = "32 x 32 shared-memory tile, transposed; rows padded by one element against bank conflicts"
// builds_on = "flat_divmod"
// mechanism = ["coalesced", "shared_memory_transpose", "bank_conflict_free"]
// tune      = { THREAD_ROWS = [8, 16, 4] }
// define    = { BF16 = "dtype == 'bf16'" }
// supports  = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
// requires  = ["cdiv(rows, 32) <= 65535", "n <= 65535"]
//
// [[launch]]
// kernel = "layout2d_shared_tile"
// grid   = ["cdiv(cols, 32)", "cdiv(rows, 32)", "n"]
// block  = ["32", "THREAD_ROWS"]
// args   = ["x", "out", "rows", "cols"]
// ///
//
// A warp reads along the rows of x and writes along the rows of out, so both are contiguous. The transposition happens
// in shared memory; with padded rows, the elements of a column are in 32 different banks (in bf16, two lanes share a
// bank). Limits: 4 bytes (2 in bf16) per load and store, so too few bytes are in flight. The method is that of NVIDIA's
// transpose example (Ruetsch and Micikevicius, 2009).
#if BF16
typedef unsigned short T;  // the bits of a bf16, because this kernel only copies
#else
typedef float T;
#endif

extern "C" __global__ void __launch_bounds__(32 * THREAD_ROWS)
    layout2d_shared_tile(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    // x [n][rows][cols]; out [n][cols][rows]
    __shared__ T tile[32][33];
    const size_t image = (size_t)blockIdx.z * rows * cols;
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;
    for (int k = threadIdx.y; k < 32; k += THREAD_ROWS) {
        const int row = top + k, column = left + threadIdx.x;
        if (row < rows && column < cols) tile[k][threadIdx.x] = x[image + (size_t)row * cols + column];
    }
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += THREAD_ROWS) {
        const int row = top + threadIdx.x, column = left + k;
        if (row < rows && column < cols) out[image + (size_t)column * rows + row] = tile[threadIdx.x][k];
    }
}
