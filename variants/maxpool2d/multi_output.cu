// /// opbench
// title     = "ROWS x COLUMNS outputs per thread from vector loads, every size known to the compiler"
// builds_on = "window_constant"
// tune      = { COLUMNS = [2, 4, 1], ROWS = [1, 2, 4], BLOCK = [256, 128] }
// where     = ["ROWS * COLUMNS <= 8"]
// define    = { WINDOW = "window", STRIDE = "stride", PADDING = "padding", H = "h", W = "w", P = "p", Q = "q" }
// requires  = [
//   "n * c * p * q <= 4294966272",
//   "window <= 16",
//   "ROWS * ((COLUMNS - 1) * stride + window) <= 96",
// ]
//
// [[launch]]
// kernel = "maxpool2d_multi_output"
// grid   = ["cdiv(n * c * cdiv(p, ROWS) * cdiv(q, COLUMNS), BLOCK)"]
// block  = ["BLOCK"]
// args   = ["x", "out", "n * c"]
// ///
//
// With 2x2 windows at stride 2 and COLUMNS = 2 a thread reads one float4 of each row and writes one float2: every
// sector is used whole by one instruction, and a full SM has 64 KB in flight per row of outputs. Overlapping windows
// (3x3 at stride 2) share their columns in registers; ROWS > 1 shares input rows as well, which saves L2 traffic. The
// sizes are macros, so the divisions are multiplications and bounds that cannot be passed cost nothing. The vectors'
// width follows from what W and COLUMNS * STRIDE divide by; rows of odd length fall back to 4-byte loads. Limit: HBM.
constexpr int COLUMN_GROUPS = (Q + COLUMNS - 1) / COLUMNS;
constexpr int ROW_GROUPS = (P + ROWS - 1) / ROWS;
constexpr int NEEDED = (COLUMNS - 1) * STRIDE + WINDOW;  // input columns under a thread's outputs
constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE + WINDOW;
constexpr int WIDTH = W % 4 == 0 && COLUMNS * STRIDE % 4 == 0 ? 4 : W % 2 == 0 && COLUMNS * STRIDE % 2 == 0 ? 2 : 1;
constexpr int SHIFT = (WIDTH - PADDING % WIDTH) % WIDTH;  // columns loaded left of the first needed, to be aligned
constexpr int VECTORS = (SHIFT + NEEDED + WIDTH - 1) / WIDTH;
constexpr bool COLUMNS_INSIDE = PADDING == 0 && (COLUMN_GROUPS - 1) * COLUMNS * STRIDE + VECTORS * WIDTH <= W;
constexpr bool ROWS_INSIDE = PADDING == 0 && (ROW_GROUPS - 1) * ROWS * STRIDE + INPUT_ROWS <= H;

template <int N>
struct alignas(4 * N) Vector {
  float lane[N];
};

extern "C" __global__ void __launch_bounds__(BLOCK)
maxpool2d_multi_output(const float* __restrict__ x, float* __restrict__ out, int planes) {
  // x: planes H W, out: planes P Q, both aligned to 16 bytes
  const unsigned i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= (unsigned)planes * (ROW_GROUPS * COLUMN_GROUPS)) return;
  const int column = (int)(i % COLUMN_GROUPS) * COLUMNS;
  const int row = (int)(i / COLUMN_GROUPS % ROW_GROUPS) * ROWS;
  const unsigned plane = i / COLUMN_GROUPS / ROW_GROUPS;
  const int top = row * STRIDE - PADDING;
  const int left = column * STRIDE - PADDING - SHIFT;  // a multiple of WIDTH
  const float* image = x + (size_t)plane * ((size_t)H * W);
  const float lowest = __int_as_float(0xff800000);  // -infinity

  float largest[ROWS][NEEDED];  // over the rows of each output's window, for each input column
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int s = 0; s < NEEDED; ++s) largest[r][s] = lowest;
  }
#pragma unroll
  for (int y = 0; y < INPUT_ROWS; ++y) {
    Vector<WIDTH> v[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
      const int z = left + k * WIDTH;  // a vector lies inside the row or outside it, never across its end
      const bool inside = (ROWS_INSIDE || (unsigned)(top + y) < H) && (COLUMNS_INSIDE || (unsigned)z < W);
#pragma unroll
      for (int lane = 0; lane < WIDTH; ++lane) v[k].lane[lane] = lowest;
      if (inside) v[k] = *reinterpret_cast<const Vector<WIDTH>*>(image + (ptrdiff_t)(top + y) * W + z);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (y < r * STRIDE || y >= r * STRIDE + WINDOW) continue;
#pragma unroll
      for (int s = 0; s < NEEDED; ++s) {
        // a NaN loses in fmaxf as it does by >
        largest[r][s] = fmaxf(largest[r][s], v[(SHIFT + s) / WIDTH].lane[(SHIFT + s) % WIDTH]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (row + r >= P) break;
    Vector<COLUMNS> result;
#pragma unroll
    for (int g = 0; g < COLUMNS; ++g) {
      result.lane[g] = largest[r][g * STRIDE];
#pragma unroll
      for (int s = 1; s < WINDOW; ++s) result.lane[g] = fmaxf(result.lane[g], largest[r][g * STRIDE + s]);
    }
    float* target = out + ((size_t)plane * P + row + r) * Q + column;
    if (Q % COLUMNS == 0) {
      *reinterpret_cast<Vector<COLUMNS>*>(target) = result;
    } else {
#pragma unroll
      for (int g = 0; g < COLUMNS; ++g) {
        if (column + g < Q) target[g] = result.lane[g];
      }
    }
  }
}
