// /// opbench
// title    = "one thread: a sum, a table look-up and two powers in double precision"
// supports = { factor = ["one", "later"] }
// define   = { FACTOR = "factor == 'one'" }
//
// [[launch]]
// kernel = "tick"
// grid   = ["1"]
// block  = ["1"]
// ///
//
// The device computes what the host would compute between two steps, so a step is one graph that does not wait for the
// host. The only cost is the launch. Other kernels read new_step, never step: their blocks may run at any time after
// this kernel.
extern "C" __global__ void tick(const int* step, const float* __restrict__ table, const float* __restrict__ hyper,
                                int* new_step, float* __restrict__ rates, int steps) {
    // step, new_step [1]; they may be the same memory; table [steps]; hyper [4]; rates [4], or [3] if another kernel
    // computes the factor
    const int done = *step, count = done + 1;
    *new_step = count;
    rates[0] = table[done < steps ? done : steps - 1];
    rates[1] = (float)(1.0 / (1.0 - pow((double)hyper[0], (double)count)));
    rates[2] = (float)(1.0 / (1.0 - pow((double)hyper[1], (double)count)));
#if FACTOR
    rates[3] = 1.0f;
#endif
}
