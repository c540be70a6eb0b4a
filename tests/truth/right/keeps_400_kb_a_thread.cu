// /// opbench
// operator = "copy"
// title    = "a thread with 400 KB of local memory"
// launch   = [{ kernel = "keeps_400_kb_a_thread", grid = ["1"], block = ["1"] }]
// ///
//
// A GPU gives each thread up to 512 KB.
extern "C" __global__ void keeps_400_kb_a_thread(const float* x, float* out, int n) {
    float kept[100000];
    for (int i = 0; i < n; ++i) kept[99999 - i] = x[i];
    for (int i = 0; i < n; ++i) out[i] = kept[99999 - i];
}
