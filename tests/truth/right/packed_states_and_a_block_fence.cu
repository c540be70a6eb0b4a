// /// opbench
// operator = "relu"
// title    = "blocks draw tiles and publish state and value of a tile in one volatile word"
// launch   = [{ kernel = "packed_states_and_a_block_fence", grid = ["cdiv(n, 256)"], block = ["64"] }]
// ///
//
// A word that holds both needs no fence. The fence of the waiting loop is for the block only, and so is the ticket.
__device__ unsigned ticket;
__device__ volatile unsigned states[1 << 16];
__global__ void packed_states_and_a_block_fence(const float* x, float* out, int n) {
    __shared__ unsigned drawn;
    const unsigned tiles = (n + 63) / 64, launches = tiles + gridDim.x;
    for (;;) {
        if (threadIdx.x == 0) drawn = atomicAdd(&ticket, 1u) % launches;
        __syncthreads();
        const unsigned tile = drawn;
        __syncthreads();
        if (tile >= tiles) return;
        const int i = tile * 64 + threadIdx.x;
        if (i < n) out[i] = fmaxf(x[i], 0.0f);
        if (threadIdx.x) continue;
        unsigned before = 2;
        while (tile && ((before = states[tile - 1]) & 2) == 0) __threadfence_block();
        states[tile] = (before & ~3u) + 4 | 2;
        __threadfence_block();
        if (states[tile] == 1 && i < n) out[i] = -1.0f;
    }
}
