// /// opbench
// operator = "relu"
// title    = "threads that copy overlapping pieces of 7 bytes"
// launch   = [{ kernel = "copies_overlapping_pieces", grid = ["cdiv(n, 64)"], block = ["64"] }]
// ///
//
// Thread i writes bytes 4 i to 4 i + 6, and its neighbour begins at byte 4 i + 4.
// expect: copies_overlapping_pieces.cu:14: global race
__device__ char part[260];
extern "C" __global__ void copies_overlapping_pieces(const float* x, float* out, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    char own[8];
    for (int k = 0; k < 8; ++k) own[k] = (char)(i + k * k);
    if (i < 64) memcpy(part + 4 * i, own, 7);
    if (i < n) out[i] = fmaxf(x[i], 0.0f);
}
