// /// opbench
// operator = "copy"
// title    = "two buffers in turn with a single barrier a step"
// launch   = [{ kernel = "one_barrier_for_two_buffers", grid = ["1"], block = ["64"] }]
// ///
//
// Who writes a buffer again has passed the barrier that all its readers have passed before.
extern "C" __global__ void one_barrier_for_two_buffers(const float* x, float* out, int n) {
    __shared__ float stage[2][64];
    const int t = threadIdx.x;
    for (int first = 0, step = 0; first < n; first += 64, ++step) {
        const int i = first + t, mirrored = first + 63 - t;
        stage[step % 2][t] = i < n ? x[i] : 0.0f;
        __syncthreads();
        if (mirrored < n) out[mirrored] = stage[step % 2][63 - t];
    }
}
