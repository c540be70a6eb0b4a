// Kernels of the harness: check guard bands, flush the L2, and block a stream until the host releases it.

typedef unsigned long long u64;

static __device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Compare two guard bands with their pattern: 16-bit words 0xFFF0 | tag, at even addresses, over the whole allocation.
// Write the distance in bytes from the content to the nearest changed byte before the content to `nearest[0]`, and to
// the nearest one after the content to `nearest[1]`. Compare bytes, because the content can end at an odd address.
extern "C" __global__ void opbench_compare_guards(const unsigned char* base, u64 guard, u64 content, unsigned tag,
                                                  unsigned* nearest) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < 2 * guard; i += stride) {
        const bool behind = i >= guard;
        const u64 offset = behind ? content + i : i;
        const unsigned expected = offset & 1 ? 0xFF : 0xF0 | tag;
        if (base[offset] != expected) {
            atomicMin(nearest + behind, (unsigned)(behind ? i - guard : guard - 1 - i));
        }
    }
}

// Mix a word of a buffer with its position and a secret by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
// The sum of all mixed words is the fingerprint of the buffer: it does not depend on the order of summation, and it
// changes with every change of one word. Contents that differ in several words have equal fingerprints once in 2^64.
// Each process has its own secret, so that no kernel can write content with a known fingerprint.
static __device__ __forceinline__ u64 mixed(u64 position, unsigned word, u64 secret) {
    u64 x = (secret + position * 0x9E3779B97F4A7C15ull) ^ (word * 0xD6E8FEB86659FD93ull);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

extern "C" __global__ void opbench_fingerprint(const unsigned char* content, u64 nbytes, u64 secret, u64* sum) {
    const u64 stride = (u64)gridDim.x * blockDim.x, whole = nbytes / 4;
    const unsigned* words = reinterpret_cast<const unsigned*>(content);
    u64 thread_sum = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < whole; i += stride) {
        thread_sum += mixed(i, words[i], secret);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && nbytes % 4) {
        unsigned rest = 0;
        for (u64 byte = 4 * whole; byte < nbytes; byte++) rest |= (unsigned)content[byte] << 8 * (byte % 4);
        thread_sum += mixed(whole, rest, secret);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) thread_sum += __shfl_down_sync(0xFFFFFFFFu, thread_sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, thread_sum);
}

// First step of an L2 flush: write more bytes than the L2 cache holds, which evicts all lines of earlier kernels.
extern "C" __global__ void opbench_fill(uint4* to, u64 count, unsigned value) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        to[i] = make_uint4(value, value, value, value);
    }
}

// Second step of an L2 flush: read as many bytes, which leaves clean lines, so that no line of the flush is written
// back in the timed interval. The memory contains zeros, so the store never happens; it keeps the compiler from removing the
// loads.
extern "C" __global__ void opbench_drain(const uint4* from, u64 count, unsigned* sink) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint4 v = from[i];
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum == 0x9E3779B9u) *sink = sum;
}

// Block the stream until the host writes `ticket` or a larger number to `flag` in mapped memory. The host does so after
// it has queued all launches, so that no launch latency is measured. A launch that waits for the stream would deadlock, so
// the kernel ends after `limit` nanoseconds and writes its ticket to `expired`.
extern "C" __global__ void opbench_hold(volatile int* flag, volatile int* expired, int ticket, u64 limit) {
    const u64 start = nanoseconds();
    while (*flag < ticket) {
        if (nanoseconds() - start > limit) {
            *expired = ticket;
            __threadfence_system();
            return;
        }
    }
}

extern "C" __global__ void opbench_nothing() {}

// Run for `length` nanoseconds, to check a timer.
extern "C" __global__ void opbench_spin(u64 length) {
    const u64 start = nanoseconds();
    while (nanoseconds() - start < length) {}
}

// Store the device's clock in nanoseconds and the cycle counter of multiprocessor 0. Two such records give the clock
// frequency between them. Counters of multiprocessors differ, so the grid must be large enough to reach number 0.
extern "C" __global__ void opbench_stamp(u64* record) {
    unsigned multiprocessor;
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
    if (multiprocessor == 0 && threadIdx.x == 0) {
        record[0] = nanoseconds();
        record[1] = clock64();
    }
}

// Run for `count` cycles, and store the measured nanoseconds and cycles.
extern "C" __global__ void opbench_cycles(u64 count, u64* elapsed) {
    const u64 start_ns = nanoseconds();
    const long long start = clock64();
    while ((u64)(clock64() - start) < count) {}
    elapsed[1] = clock64() - start;
    elapsed[0] = nanoseconds() - start_ns;
}

// Load words of zeroed memory, each after the load before it. The time of one load is the latency of the cache level
// that has the data.
extern "C" __global__ void opbench_chase(const unsigned* zeros, unsigned words, unsigned stride, unsigned steps,
                                         unsigned* sink) {
    unsigned index = 0;
    for (unsigned step = 0; step < steps; step++) {
        unsigned value;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(zeros + index));
        index += stride + value;
        if (index >= words) index -= words;
    }
    if (index == ~0u) *sink = index;
}
