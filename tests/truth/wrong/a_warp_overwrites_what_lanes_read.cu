// /// opbench
// operator = "copy"
// title    = "the lanes of a warp shift numbers in a workspace, with nothing between read and write"
// workspace = { stage = "32 * cdiv(n, 32)" }
// launch   = [{ kernel = "a_warp_overwrites_what_lanes_read", grid = ["cdiv(n, 32)"], block = ["32"], args = ["x", "out", "stage", "n"] }]
// ///
//
// Since Volta a lane may write before its neighbour has read.
// expect: a_warp_overwrites_what_lanes_read.cu:14: global-race
extern "C" __global__ void a_warp_overwrites_what_lanes_read(const float* x, float* out, float* stage, int n) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    stage[i] = i < n ? x[i] : 0.0f;
    __syncwarp();
    const float own = stage[i ^ 1];
    stage[i] = own;
    __syncwarp();
    if (i < n) out[i] = stage[i ^ 1];
}
