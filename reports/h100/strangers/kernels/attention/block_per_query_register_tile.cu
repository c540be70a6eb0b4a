// /// opbench
// title     = "four queries per thread: each element of a key or value is used four times"
// builds_on = "block_per_query"
// mechanism = ["register_tile"]
//
// [[launch]]
// kernel = "attention_kernel"
// grid   = ["cdiv(queries, 4)", "heads", "batch"]
// block  = ["128"]
// shared = "4 * 4 * keys"
// args   = ["q", "k", "v", "out", "heads", "kv_heads", "queries", "keys", "depth"]
// ///
#define ROWS 4

__global__ void attention_kernel(const float* Q, const float* K, const float* V, float* O, int H, int KVH, int M, int N,
                                 int d) {
    extern __shared__ float att[];
    __shared__ float max_score[ROWS], sum[ROWS];
    int row0 = blockIdx.x * ROWS, h = blockIdx.y, b = blockIdx.z;
    int kv = h * KVH / H;
    int rows = min(ROWS, M - row0);
    const float* q = Q + ((size_t)(b * H + h) * M + row0) * d;
    const float* keys = K + (size_t)(b * KVH + kv) * N * d;
    const float* values = V + (size_t)(b * KVH + kv) * N * d;
    float scale = 1.0f / sqrtf((float)d);

    for (int t = threadIdx.x; t < N; t += blockDim.x) {
        float score[ROWS] = {};
        for (int i = 0; i < d; i++) {
            float key = keys[t * d + i];
            for (int r = 0; r < ROWS; r++) score[r] += q[(r < rows ? r : 0) * d + i] * key;
        }
        for (int r = 0; r < ROWS; r++) att[r * N + t] = score[r] * scale;
    }
    __syncthreads();

    if (threadIdx.x == 0) {
        for (int r = 0; r < rows; r++) {
            max_score[r] = att[r * N];
            for (int t = 1; t < N; t++) max_score[r] = fmaxf(max_score[r], att[r * N + t]);
            sum[r] = 0.0f;
            for (int t = 0; t < N; t++) {
                att[r * N + t] = expf(att[r * N + t] - max_score[r]);
                sum[r] += att[r * N + t];
            }
        }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        float acc[ROWS] = {};
        for (int t = 0; t < N; t++) {
            float value = values[t * d + i];
            for (int r = 0; r < ROWS; r++) acc[r] += att[r * N + t] * value;
        }
        for (int r = 0; r < rows; r++) O[((size_t)(b * H + h) * M + row0 + r) * d + i] = acc[r] / sum[r];
    }
}
