// /// opbench
// title  = "one thread per loss of the record; one of them writes the new loss"
// tune   = { BLOCK = [256] }
//
// [[launch]]
// kernel = "record_scalar"
// grid   = ["cdiv(steps, BLOCK)"]
// block  = ["BLOCK"]
// ///
//
// The host can read the list at any time, and no step waits for it. If the old and the new list are the same memory,
// only one thread writes. The only cost is the launch.
extern "C" __global__ void record_scalar(const float* losses, const float* __restrict__ loss,
                                         const int* __restrict__ step, float* new_losses, int steps) {
    // losses, new_losses [steps], which may be the same memory; loss [1]; step [1], counts from 1
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= steps) return;
    if (i == *step - 1) {
        new_losses[i] = *loss;
    } else if (new_losses != losses) {
        new_losses[i] = losses[i];
    }
}
