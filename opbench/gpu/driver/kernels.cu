// Kernels of the harness: check guard bands, flush the L2, and block a stream until the host releases it.

typedef unsigned long long u64;

static __device__ __forceinline__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Compare two guard bands with their pattern: 16-bit words 0xFFF0 | tag, at even addresses, over the whole allocation.
// `nearest[0]` and `nearest[1]` become the distance in bytes from the content to the closest changed byte in front of
// it and behind it. The content may end at an odd address, hence bytes.
extern "C" __global__ void opbench_compare_guards(const unsigned char* base, u64 guard, u64 content, unsigned tag,
                                                  unsigned* nearest) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < 2 * guard; i += stride) {
        const bool behind = i >= guard;
        const u64 at = behind ? content + i : i;
        const unsigned want = at & 1 ? 0xFF : 0xF0 | tag;
        if (base[at] != want) {
            atomicMin(nearest + behind, (unsigned)(behind ? i - guard : guard - 1 - i));
        }
    }
}

// A number that stands for the content of a buffer: the sum of mixed (position, word, secret), so that no order matters
// and no change of one word goes unseen; two contents that differ in more agree once in 2^64. The mixing is that of
// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); the secret is new in each process, so that no kernel can aim at it.
static __device__ __forceinline__ u64 mixed(u64 position, unsigned word, u64 secret) {
    u64 x = (secret + position * 0x9E3779B97F4A7C15ull) ^ (word * 0xD6E8FEB86659FD93ull);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

extern "C" __global__ void opbench_fingerprint(const unsigned char* content, u64 nbytes, u64 secret, u64* sum) {
    const u64 stride = (u64)gridDim.x * blockDim.x, whole = nbytes / 4;
    const unsigned* words = reinterpret_cast<const unsigned*>(content);
    u64 own = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < whole; i += stride) {
        own += mixed(i, words[i], secret);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && nbytes % 4) {
        unsigned rest = 0;
        for (u64 at = 4 * whole; at < nbytes; at++) rest |= (unsigned)content[at] << 8 * (at % 4);
        own += mixed(whole, rest, secret);
    }
    for (int apart = 16; apart > 0; apart /= 2) own += __shfl_down_sync(0xFFFFFFFFu, own, apart);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

// First half of a cold L2: writing more than it holds pushes out all that a kernel left there.
extern "C" __global__ void opbench_fill(uint4* to, u64 count, unsigned value) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        to[i] = make_uint4(value, value, value, value);
    }
}

// Second half: reading as much again leaves clean lines, so that no write-back of ours falls into the timed span.
// The store never happens (the memory holds zeros) but keeps the loads alive.
extern "C" __global__ void opbench_drain(const uint4* from, u64 count, unsigned* sink) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    unsigned sum = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const uint4 v = from[i];
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum == 0x9E3779B9u) *sink = sum;
}

// Hold the stream until the host writes `ticket` or a larger one to mapped memory; then everything behind it is already
// queued and no launch latency is left to be measured. The limit breaks the deadlock with a callable that waits for the
// stream; it is reported through `expired`.
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

// A kernel of known length, to check a timer with.
extern "C" __global__ void opbench_spin(u64 length) {
    const u64 start = nanoseconds();
    while (nanoseconds() - start < length) {}
}

// What the first multiprocessor's cycle counter and the device's clock read: two such stamps give its frequency in
// between. Counters of different multiprocessors differ, so the grid has to reach that one.
extern "C" __global__ void opbench_stamp(u64* at) {
    unsigned multiprocessor;
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
    if (multiprocessor == 0 && threadIdx.x == 0) {
        at[0] = nanoseconds();
        at[1] = clock64();
    }
}

// A kernel of a known number of cycles that says how long it was by its own clocks: nanoseconds, then cycles.
extern "C" __global__ void opbench_cycles(u64 count, u64* took) {
    const u64 began = nanoseconds();
    const long long start = clock64();
    while ((u64)(clock64() - start) < count) {}
    took[1] = clock64() - start;
    took[0] = nanoseconds() - began;
}

// Loads that wait for each other, through memory that holds zeros: the time of one is the latency of the level that
// holds it.
extern "C" __global__ void opbench_chase(const unsigned* zeros, unsigned words, unsigned stride, unsigned steps,
                                         unsigned* sink) {
    unsigned at = 0;
    for (unsigned step = 0; step < steps; step++) {
        unsigned value;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(zeros + at));
        at += stride + value;
        if (at >= words) at -= words;
    }
    if (at == ~0u) *sink = at;
}
