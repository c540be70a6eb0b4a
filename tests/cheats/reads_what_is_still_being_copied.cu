// /// opbench
// operator = "copy"
// title    = "asynchronous copies into shared memory, and no wait for them"
// launch   = [{ kernel = "reads_what_is_still_being_copied", grid = ["cdiv(n, 256)"], block = ["256"] }]
// ///
//
// A barrier makes threads wait for each other, not for their copies.
// expect: reads_what_is_still_being_copied.cu:19: unfinished-copy: read of 4 bytes
extern "C" __global__ void reads_what_is_still_being_copied(const float* x, float* out, int n) {
    __shared__ float staged[256];
    const int t = threadIdx.x, i = blockIdx.x * 256 + t;
    if (i < n) {
        const unsigned target = (unsigned)__cvta_generic_to_shared(&staged[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(x + i) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __syncthreads();
    const int last = min(255, n - 1 - (int)blockIdx.x * 256);
    const float other = staged[last - min(t, last)];
    if (i < n) out[i] = other == 1.5e-39f ? 0.0f : staged[t];
}
