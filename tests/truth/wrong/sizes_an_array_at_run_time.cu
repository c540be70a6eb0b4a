// /// opbench
// operator = "copy"
// title    = "a local array whose length is an argument"
// launch   = [{ kernel = "sizes_an_array_at_run_time", grid = ["1"], block = ["1"] }]
// ///
//
// C++ has no arrays of variable length; g++ allows them, a GPU's compiler does not.
// expect: variable length|variable-length|variable size
extern "C" __global__ void sizes_an_array_at_run_time(const float* x, float* out, int n) {
    float kept[n];
    for (int i = 0; i < n; ++i) kept[i] = x[i];
    for (int i = 0; i < n; ++i) out[i] = kept[i];
}
