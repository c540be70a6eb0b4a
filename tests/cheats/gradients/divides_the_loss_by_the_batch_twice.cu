// /// opbench
// operator = "mse_loss"
// title    = "a mean of means, once more divided"
// launch   = [{ kernel = "divides_the_loss_by_the_batch_twice", grid = ["1"], block = ["1"] }]
// ///
//
// A step of training still goes downhill, only more slowly.
// expect: value
// right: const float count = (float)n * micro;
extern "C" __global__ void divides_the_loss_by_the_batch_twice(const float* x, const float* target, float* loss,
                                                               float* dx, int n, int micro) {
    const float count = (float)n * micro * n;  // here
    float sum = 0.0f, lost = 0.0f;             // Kahan's sum: one thread adds up all
    for (int i = 0; i < n; ++i) {
        const float d = x[i] - target[i], term = d * d - lost, next = sum + term;
        lost = next - sum - term;
        sum = next;
        dx[i] = 2.0f * d / count;
    }
    *loss = sum / count;
}
