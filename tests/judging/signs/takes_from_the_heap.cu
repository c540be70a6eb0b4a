// /// opbench
// operator = "relu"
// title    = "memory of the device's heap"
// launch   = [{ kernel = "takes_from_the_heap", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A buffer for one element, from malloc.
//
// sign: device-heap
extern "C" __global__ void takes_from_the_heap(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    float* mine = static_cast<float*>(malloc(sizeof(float)));  // here
    if (!mine) return;
    *mine = x[i];
    out[i] = fmaxf(*mine, 0.0f);
    free(mine);
}
