// /// opbench
// title  = "one thread adds the stride to a counter"
//
// [[launch]]
// kernel = "advance"
// grid   = ["1"]
// block  = ["1"]
// ///
//
// With a counter on the device, a step of several micro-batches can be one graph that does not wait for the host: each
// micro-batch reads its number from memory. The only cost is the launch. Other kernels read new_count, never count.
extern "C" __global__ void advance(const int* count, int* new_count, int stride) {
    // count, new_count [1]; they may be the same memory
    *new_count = *count + stride;
}
