// /// opbench
// operator = "sum"
// title    = "one atomic addition per element, all to one address"
//
// [[launch]]
// zero = "out"
//
// [[launch]]
// kernel = "adds_every_element_atomically"
// grid = ["cdiv(n, 256)"]
// block = ["256"]
// args = ["x", "out", "n"]
// ///
//
// The 32 lanes of each request update the same word one after another.
// expect: adds_every_element_atomically.cu:20: atomic collisions: 97 % of the lanes
// at: (n=65536)
extern "C" __global__ void adds_every_element_atomically(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) atomicAdd(out, x[i]);
}
