// /// opbench
// operator = "copy"
// title    = "a kernel bounded to 128 threads, launched with 256"
// launch   = [{ kernel = "launches_more_than_its_bounds", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A GPU refuses the launch.
// expect: __launch_bounds__
extern "C" __global__ void __launch_bounds__(128) launches_more_than_its_bounds(const float* x, float* out, int n) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i];
}
