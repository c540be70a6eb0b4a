// /// opbench
// title     = "16-byte loads and stores around a padded shared-memory tile"
// builds_on = "shared_tile"
// mechanism = ["coalesced", "vectorised_access", "shared_memory_transpose", "bank_conflict_free"]
// tune      = { BLOCK = [256, 128], TILES = [1, 2] }
// supports  = { to = ["nhwc", "nchw"], dtype = ["f32", "bf16"] }
// requires  = ["cdiv(rows, 64) <= 65535", "n <= 65535", "TILES == 1 or cols > 64"]
//
// [define]
// BF16 = "dtype == 'bf16'"
// ROWS = "rows"
// COLS = "cols"
//
// [[launch]]
// kernel = "layout2d_vectorised"
// grid   = [
//   "cdiv(cols, (64 if dtype == 'bf16' else 32) * TILES)",
//   "cdiv(rows, 64 if dtype == 'bf16' else 32)",
//   "n",
// ]
// block  = ["BLOCK"]
// args   = ["x", "out"]
// ///
//
// A tile is eight vectors (128 bytes) wide and as many elements high. Vectors are stored to shared memory element by
// element, and output vectors are assembled from the tile's columns. A row is padded by one word; then the eight rows,
// or columns, that a warp accesses at once are in 32 different banks, for stores and for loads. Each block loads TILES
// neighbouring tiles before its barrier. Limit: HBM. If no vector divides the length of a side, accesses are narrower;
// with few channels most of a tile is empty.
#if BF16
typedef unsigned short T;
#else
typedef float T;
#endif
constexpr int LANES = 16 / sizeof(T), TILE = 8 * LANES, STRIDE = TILE + 4 / sizeof(T);
constexpr int widest(int length) { return length % LANES == 0 ? LANES : length % 4 == 0 ? 4 : length % 2 == 0 ? 2 : 1; }
constexpr int IN = widest(COLS), OUT = widest(ROWS);  // elements of a vector loaded and stored

// A vector as words, which are only copied.
template <int BYTES>
struct Raw;
template <>
struct Raw<16> {
    typedef uint4 type;
};
template <>
struct Raw<8> {
    typedef uint2 type;
};
template <>
struct Raw<4> {
    typedef unsigned type;
};
template <>
struct Raw<2> {
    typedef unsigned short type;
};
typedef Raw<sizeof(T) * IN>::type Loaded;
typedef Raw<sizeof(T) * OUT>::type Stored;

extern "C" __global__ void __launch_bounds__(BLOCK) layout2d_vectorised(const T* __restrict__ x, T* __restrict__ out) {
    // x [n][ROWS][COLS]; out [n][COLS][ROWS], both aligned to 16 bytes
    __shared__ T tiles[TILES][TILE * STRIDE];
    const size_t image = (size_t)blockIdx.z * ROWS * COLS;
    const int left = blockIdx.x * (TILE * TILES), top = blockIdx.y * TILE;
#pragma unroll
    for (int k = 0; k < TILES * TILE * (TILE / IN); k += BLOCK) {
        const int i = k + threadIdx.x, place = i % (TILES * (TILE / IN)) * IN;  // along the rows of all tiles
        const int row = i / (TILES * (TILE / IN)), column = place % TILE;
        if (row >= TILE || top + row >= ROWS || left + place >= COLS) continue;
        const Loaded v = *reinterpret_cast<const Loaded*>(x + image + (size_t)(top + row) * COLS + left + place);
#pragma unroll
        for (int j = 0; j < IN; ++j) tiles[place / TILE][row * STRIDE + column + j] = reinterpret_cast<const T*>(&v)[j];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILES * TILE * (TILE / OUT); k += BLOCK) {
        const int i = k + threadIdx.x, row = i % (TILE / OUT) * OUT;
        const int place = i / (TILE / OUT), column = place % TILE;
        if (place >= TILES * TILE || top + row >= ROWS || left + place >= COLS) continue;
        Stored v;
#pragma unroll
        for (int j = 0; j < OUT; ++j) reinterpret_cast<T*>(&v)[j] = tiles[place / TILE][(row + j) * STRIDE + column];
        // The compiler split an ordinary assignment into stores of one word.
        __stwb(reinterpret_cast<Stored*>(out + image + (size_t)(left + place) * ROWS + top + row), v);
    }
}
