// /// opbench
// operator = "tick"
// title    = "Adam's corrections of the step before"
// launch   = [{ kernel = "corrects_the_bias_one_step_late", grid = ["1"], block = ["1"] }]
// ///
//
// After a few hundred steps nothing is to be seen of it.
// expect: value
// right: const double count = done + 1;
extern "C" __global__ void corrects_the_bias_one_step_late(const int* step, const float* table, const float* hyper,
                                                           int* new_step, float* rates, int steps) {
    const int done = *step;
    const double count = max(done, 1);  // here
    *new_step = done + 1;
    rates[0] = table[min(done, steps - 1)];
    rates[1] = (float)(1.0 / (1.0 - pow((double)hyper[0], count)));
    rates[2] = (float)(1.0 / (1.0 - pow((double)hyper[1], count)));
    rates[3] = 1.0f;
}
