// /// opbench
// title  = "one thread adds the stride to a counter"
//
// [[launch]]
// kernel = "advance"
// grid   = ["1"]
// block  = ["1"]
// ///
//
// Counting on the device lets a step of several micro-batches be one graph that waits for no host: each reads in memory
// which of all micro-batches it is. The launch is all that it costs. Others read new_count, never count.
extern "C" __global__ void advance(const int* count, int* new_count, int stride) {
    // count, new_count [1], perhaps the same memory
    *new_count = *count + stride;
}
