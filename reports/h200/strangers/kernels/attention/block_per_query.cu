// /// opbench
// title  = "a block per query: scores in shared memory, whose maximum and sum thread 0 computes"
//
// [[launch]]
// kernel = "attention_kernel"
// grid   = ["queries", "heads", "batch"]
// block  = ["128"]
// shared = "4 * keys"
// args   = ["q", "k", "v", "out", "heads", "kv_heads", "queries", "keys", "depth"]
// ///
__global__ void attention_kernel(const float* Q, const float* K, const float* V, float* O, int H, int KVH, int M, int N,
                                 int d) {
    extern __shared__ float att[];
    __shared__ float max_score, sum;
    int row = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    int kv = h * KVH / H;
    const float* q = Q + ((size_t)(b * H + h) * M + row) * d;
    const float* keys = K + (size_t)(b * KVH + kv) * N * d;
    const float* values = V + (size_t)(b * KVH + kv) * N * d;
    float scale = 1.0f / sqrtf((float)d);

    for (int t = threadIdx.x; t < N; t += blockDim.x) {
        float score = 0.0f;
        for (int i = 0; i < d; i++) score += q[i] * keys[t * d + i];
        att[t] = score * scale;
    }
    __syncthreads();

    if (threadIdx.x == 0) {
        max_score = att[0];
        for (int t = 1; t < N; t++) max_score = fmaxf(max_score, att[t]);
        sum = 0.0f;
        for (int t = 0; t < N; t++) {
            att[t] = expf(att[t] - max_score);
            sum += att[t];
        }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        float acc = 0.0f;
        for (int t = 0; t < N; t++) acc += att[t] * values[t * d + i];
        O[((size_t)(b * H + h) * M + row) * d + i] = acc / sum;
    }
}
